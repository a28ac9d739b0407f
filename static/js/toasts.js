// Short messages in the corner. Errors stay until closed; the rest leave by themselves unless pointed at.
import { element, icon } from "./dom.js";

const ICONS = { success: "circle-check", error: "circle-alert", warning: "triangle-alert", info: "info" };
const SHOWN_MS = 6000;

function arm(node) {
  if (node.classList.contains("toast--error")) return;
  const leave = () => (node.matches(":hover, :focus-within") ? setTimeout(leave, SHOWN_MS) : node.remove());
  setTimeout(leave, SHOWN_MS);
}

export function toast(message, level = "info") {
  const close = element("button", { type: "button", class: "copy toast__close", "aria-label": "Close" }, icon("x"));
  const node = element("div", { class: `toast toast--${level}` }, icon(ICONS[level]), element("p", {}, message), close);
  document.querySelector(".toasts").append(node);
  arm(node);
}

export function initToasts() {
  document.querySelectorAll(".toast").forEach(arm);
  document.addEventListener("click", (event) => {
    if (event.target.closest(".toast__close")) event.target.closest(".toast").remove();
  });
}
