// Swagger UI with the reference of the API, in the theme of the page.

const root = document.documentElement;
const dark = matchMedia("(prefers-color-scheme: dark)");
const takeTheme = () =>
  root.classList.toggle("dark-mode", (root.dataset.theme || (dark.matches ? "dark" : "light")) === "dark");

takeTheme();
dark.addEventListener("change", takeTheme);
new MutationObserver(takeTheme).observe(root, { attributeFilter: ["data-theme"] });

window.SwaggerUIBundle({
  ...JSON.parse(document.getElementById("swagger-settings").textContent),
  dom_id: "#swagger-ui",
  presets: [window.SwaggerUIBundle.presets.apis],
});
