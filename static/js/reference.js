// The API reference in the theme of the other pages. Loaded in <head>, not as a module, so that it never flashes.
(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const apply = () => {
    const theme = localStorage.getItem("theme") ?? (dark.matches ? "dark" : "light");
    document.documentElement.classList.toggle("dark-mode", theme === "dark");
  };
  apply();
  dark.addEventListener("change", apply);
})();
