// Explains why a chosen or dropped file could not be uploaded.
import { gettext } from "./words.js";

/** Return the reason why the browser could not send a file, if the file is the cause. */
export async function whyUnreadable(file) {
  try {
    await file.slice(0, 1).arrayBuffer();
  } catch {
    return gettext("%(name)s cannot be read. If it is a folder, choose the files in it.", { name: file.name });
  }
}

/** Return the reason why a request was refused. The error page of a proxy contains no sentence. */
export function whyRefused(request, tooLarge) {
  if (request.status === 413) return tooLarge;
  if (request.getResponseHeader("content-type")?.startsWith("text/plain")) return request.responseText;
  if (request.status >= 500) return gettext("The server is not responding. Try again.");
}
