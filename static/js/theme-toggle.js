// The button that switches between light and dark, and remembers it.

const dark = matchMedia("(prefers-color-scheme: dark)");

function current() {
  return document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light");
}

function announce() {
  document.dispatchEvent(new CustomEvent("themechange"));
}

export function toggleTheme() {
  const next = current() === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  localStorage.setItem("theme", next);
  announce();
}

export function initTheme() {
  dark.addEventListener("change", announce);
  for (const button of document.querySelectorAll("[data-theme-toggle]")) {
    button.addEventListener("click", toggleTheme);
  }
}
