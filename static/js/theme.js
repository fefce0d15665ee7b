// Runs before the first paint. Values that the page has set take precedence.
for (const name of ["theme", "side"]) {
  try {
    const value = localStorage.getItem(`loom:${name}`);
    if (value) document.documentElement.dataset[name] ??= value;
  } catch { /* off */ }
}
