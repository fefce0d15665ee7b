// Why a file that was chosen or dropped did not leave the browser, where it is not the connection.
import { gettext } from "./words.js";

export async function whyUnreadable(file) {
  try {
    await file.slice(0, 1).arrayBuffer();
  } catch {
    return gettext("%(name)s cannot be read. If it is a folder, choose the files in it.", { name: file.name });
  }
}
