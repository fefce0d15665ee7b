import { create, find } from "./dom.js";

/** A style sheet that is needed from now on. */
export function addStyle(href) {
  if (find(`link[href="${href}"]`)) return Promise.resolve();
  return new Promise((resolve) => {
    document.head.append(create("link", { rel: "stylesheet", href, onload: resolve, onerror: resolve }));
  });
}
