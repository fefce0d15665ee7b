// Before the first paint, so that nothing flashes.
for (const name of ["theme", "side"]) {
  try {
    const value = localStorage.getItem(`loom:${name}`);
    if (value) document.documentElement.dataset[name] = value;
  } catch { /* off */ }
}
