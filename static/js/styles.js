import { create, find } from "./dom.js";

/** Load a style sheet. The promise resolves when it is applied, or when it has failed. */
export function addStyle(href) {
  if (find(`link[href="${href}"]`)) return Promise.resolve();
  return new Promise((resolve) => {
    document.head.append(create("link", { rel: "stylesheet", href, onload: resolve, onerror: resolve }));
  });
}
