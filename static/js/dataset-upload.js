// An upload's page: the check shows how far it is, what it found takes the page's place, a faulty line leads to itself.
import { updateTimes } from "./times.js";

const POLL_MS = 500;

function selectLine(text, number) {
  const lines = text.value.split("\n");
  const start = lines.slice(0, number - 1).join("\n").length + (number > 1 ? 1 : 0);
  text.focus();
  text.setSelectionRange(start, start + (lines[number - 1]?.length ?? 0));
  text.scrollTop = (number - 3) * parseFloat(getComputedStyle(text).lineHeight);
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("[data-line]");
  const text = document.getElementById("id_text");
  if (!link || !text) return;
  document.getElementById("rows-editor").open = true;
  selectLine(text, Number(link.dataset.line));
});

function show(form, fraction) {
  const box = form.querySelector("#store-progress");
  box.hidden = fraction === null;
  if (fraction === null) return;
  box.querySelector("progress").value = fraction;
  box.querySelector("[role=status]").textContent = fraction < 1 ? `${Math.floor(100 * fraction)} % checked` : "Storing…";
}

function follow(form) {
  return setInterval(async () => {
    const answer = await fetch(form.dataset.progress).catch(() => null);
    if (answer?.ok) show(form, (await answer.json()).fraction);
  }, POLL_MS);
}

function refuse(form, text) {
  const box = form.querySelector("#store-refused");
  box.querySelector("p").textContent = text;
  box.hidden = false;
}

/** The page as the server answered it, in the place of this one. */
function replace(html) {
  const next = new DOMParser().parseFromString(html, "text/html").getElementById("main");
  const main = document.getElementById("main");
  if (!next) return false;
  main.replaceChildren(...next.childNodes);
  globalThis.htmx?.process(main);
  updateTimes(main);
  scrollTo(0, 0);
  (main.querySelector("[role=alert]:not([hidden])") ?? main).querySelector("input, select, a, button")?.focus({ preventScroll: true });
  return true;
}

document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (form.id !== "store") return;
  event.preventDefault();
  const button = form.querySelector("[data-store]");
  button.disabled = true;
  form.querySelector("#store-refused").hidden = true;
  show(form, 0);
  const following = follow(form);
  const headers = { "X-Requested-With": "XMLHttpRequest" };
  try {
    const answer = await fetch(location.href, { method: "POST", body: new FormData(form), headers });
    if (answer.headers.get("Content-Type")?.startsWith("application/json")) {
      location.assign((await answer.json()).location);
      return;
    }
    if (!replace(await answer.text())) refuse(form, "The server could not check it. Nothing is lost: try again.");
  } catch {
    refuse(form, "The connection was lost. Nothing is lost: try again.");
  } finally {
    clearInterval(following);
    if (form.isConnected) {
      show(form, null);
      button.disabled = false;
    }
  }
});
