// The sign-in page. After a deliberate sign-out, stored texts are deleted, also in other tabs with
// a composer. After an expired sign-in, messages are kept for the next one.
if (/loom_signed_out/.test(document.cookie)) {
  document.cookie = "loom_signed_out=;path=/;max-age=0";
  sessionStorage.clear();
  for (const key in localStorage) if (/:pending:/.test(key)) delete localStorage[key];
  localStorage.setItem("loom:out", 1); // informs the other tabs (dom.js)
  delete localStorage["loom:out"];
}
