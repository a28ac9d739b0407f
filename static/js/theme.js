// Loaded in <head> before the styles apply, so that a remembered theme never flashes. Not a module for that reason.
(() => {
  const saved = localStorage.getItem("theme");
  if (saved === "light" || saved === "dark") document.documentElement.dataset.theme = saved;
})();
