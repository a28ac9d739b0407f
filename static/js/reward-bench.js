// The test bench: Ctrl+Enter tests, refusals are marked at their fields, errors of the reward at their lines.
import { clearMarks, markLine } from "./reward-editor.js";

const test = document.querySelector("[data-try]");
let shown = "";

addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey) || event.defaultPrevented) return;
  event.preventDefault();
  test?.click();
});

function unmarkFields() {
  for (const control of document.querySelectorAll("[data-refused-by]")) {
    control.removeAttribute("aria-invalid");
    control.removeAttribute("data-refused-by");
  }
}

function markFields(result) {
  for (const refusal of result.querySelectorAll("[data-control]")) {
    const control = refusal.dataset.control && document.getElementById(refusal.dataset.control);
    if (!control) continue;
    control.setAttribute("aria-invalid", "true");
    control.dataset.refusedBy = "test";
    const line = /line (\d+)/i.exec(refusal.textContent);
    if (line) markLine(Number(line[1]), refusal.textContent);
  }
}

document.addEventListener("htmx:after:swap", () => {
  const result = document.getElementById("trial");
  if (!result?.children.length) return;
  if (shown !== result.dataset.trial || "refused" in result.dataset) result.scrollIntoView({ block: "nearest" });
  shown = result.dataset.trial;
  unmarkFields();
  clearMarks();
  markFields(result);
  const failed = result.querySelector("[data-error-line]");
  if (failed) markLine(Number(failed.dataset.errorLine), failed.dataset.error);
});
