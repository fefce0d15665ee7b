// On the sign-in page: after a sign-out that was asked for, nothing is left of what was written,
// here and in tabs that are still open. Where a sign-in ran out, messages wait for the next one.
if (/loom_signed_out/.test(document.cookie)) {
  document.cookie = "loom_signed_out=;path=/;max-age=0";
  sessionStorage.clear();
  localStorage.setItem("loom:out", 1); // the other tabs hear of it (dom.js)
  for (const key in localStorage) if (/:pending:|:out$/.test(key)) delete localStorage[key];
}
