// On every page: theme, menus, dialogs, copy buttons, times, toasts, keyboard, palette, connection, focus, what is cut off.
import { initCopyButtons } from "./copy.js";
import { initConnection } from "./connection.js";
import { initDialogs, initMenus } from "./dialogs.js";
import { initFocus } from "./focus.js";
import { initPalette } from "./palette.js";
import { initShortcuts } from "./shortcuts.js";
import { initTheme } from "./theme-toggle.js";
import { initTimes } from "./times.js";
import { initToasts } from "./toasts.js";
import { initTruncated } from "./truncated.js";

initTheme();
initMenus();
initDialogs();
initCopyButtons();
initTimes();
initToasts();
initShortcuts();
initPalette();
initConnection();
initFocus();
initTruncated();

// A row of tabs wider than the screen begins with the one shown in sight.
for (const tab of document.querySelectorAll(".scroll-x > .segmented > [aria-current]")) {
  const row = tab.closest(".scroll-x");
  const [inner, outer] = [tab.getBoundingClientRect(), row.getBoundingClientRect()];
  if (inner.right > outer.right) row.scrollLeft += inner.left - outer.left - (outer.width - inner.width) / 2;
}

// A form that was sent says so and cannot be sent twice.
document.addEventListener("submit", (event) => {
  const button = event.submitter;
  if (!button?.dataset.busy || event.defaultPrevented) return;
  const label = button.querySelector("[data-label]") ?? button;
  label.textContent = button.dataset.busy;
  button.setAttribute("aria-disabled", "true");
  setTimeout(() => (button.disabled = true));
});

// Back/forward may restore a page with its button still disabled.
addEventListener("pageshow", (event) => {
  if (event.persisted && document.querySelector("[data-busy]:disabled")) location.reload();
});
