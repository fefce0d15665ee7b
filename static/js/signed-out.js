// On the sign-in page: after a sign-out that was asked for, nothing is left of what was written, here
// and in other tabs that show a page with a composer. Where a sign-in ran out, messages wait for the
// next one.
if (/loom_signed_out/.test(document.cookie)) {
  document.cookie = "loom_signed_out=;path=/;max-age=0";
  sessionStorage.clear();
  for (const key in localStorage) if (/:pending:/.test(key)) delete localStorage[key];
  try {
    localStorage.setItem("loom:out", 1); // the other tabs hear of it (dom.js)
  } catch { /* off or full */ }
  delete localStorage["loom:out"];
}
