// Before the first paint. What the page brings along counts more.
for (const name of ["theme", "side"]) {
  try {
    const value = localStorage.getItem(`loom:${name}`);
    if (value) document.documentElement.dataset[name] ??= value;
  } catch { /* off */ }
}
