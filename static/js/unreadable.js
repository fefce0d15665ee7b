// Explains why the browser could not send a chosen or dropped file, if the file is the cause.
import { gettext } from "./words.js";

export async function whyUnreadable(file) {
  try {
    await file.slice(0, 1).arrayBuffer();
  } catch {
    return gettext("%(name)s cannot be read. If it is a folder, choose the files in it.", { name: file.name });
  }
}
