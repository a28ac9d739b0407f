// Buttons that copy: data-copy holds the text, or data-copy-from the id of the element that shows it.
import { toast } from "./toasts.js";

async function copy(button) {
  const source = button.dataset.copyFrom && document.getElementById(button.dataset.copyFrom);
  const text = source ? (source.value ?? source.textContent) : button.dataset.copy;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    toast("The browser did not allow copying. Select the text and copy it by hand.", "error");
    return;
  }
  button.classList.add("is-done");
  button.setAttribute("aria-label", "Copied");
  setTimeout(() => {
    button.classList.remove("is-done");
    button.setAttribute("aria-label", "Copy");
  }, 1600);
}

export function initCopyButtons() {
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-copy], [data-copy-from]");
    if (button) copy(button);
  });
}
