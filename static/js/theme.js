// Runs before the first paint, so that neither the theme nor the sidebar flashes.
for (const name of ["theme", "side"]) {
  try {
    const value = localStorage.getItem(`loom:${name}`);
    if (value) document.documentElement.dataset[name] = value;
  } catch { /* storage is off */ }
}
