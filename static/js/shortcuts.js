// Keyboard: `?` lists the shortcuts; `g` then a letter goes to a page. The list in the dialog names the same keys.
import { toggleTheme } from "./theme-toggle.js";

const SEQUENCE_MS = 1200;

function typing(target) {
  return target.closest("input, textarea, select, [contenteditable], dialog[open]") !== null;
}

export function initShortcuts() {
  const dialog = document.getElementById("shortcuts");
  if (!dialog) return;
  const destinations = Object.fromEntries(
    [...document.querySelectorAll("[data-shortcut]")].map((link) => [link.dataset.shortcut, link.href]),
  );
  let prefix = "";
  let timer;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target)) return;
    const keys = prefix ? `${prefix} ${event.key}` : event.key;
    prefix = "";
    clearTimeout(timer);
    if (destinations[keys]) {
      event.preventDefault();
      location.assign(destinations[keys]);
    } else if (event.key === "?") {
      dialog.showModal();
    } else if (event.key === "t") {
      toggleTheme();
    } else if (event.key === "g") {
      prefix = "g";
      timer = setTimeout(() => (prefix = ""), SEQUENCE_MS);
    }
  });
}
