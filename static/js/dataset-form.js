// Sending a dataset: what was dropped is named, a file above the limit is refused before it is sent, progress is shown.
import { element, icon } from "./dom.js";

const form = document.getElementById("upload");
const drop = form.querySelector("[data-drop]");
const input = drop.querySelector("input");
const refused = document.getElementById("upload-refused");
const progress = document.getElementById("upload-progress");
const button = form.querySelector(".btn--primary");
const limit = Number(form.dataset.limit);

function size(bytes) {
  if (bytes < 1024) return `${bytes} bytes`;
  return bytes < 1024 ** 2 ? `${(bytes / 1024).toFixed(1)} KB` : `${(bytes / 1024 ** 2).toFixed(1)} MB`;
}

function showChosen() {
  const [file] = input.files;
  if (!file) return;
  drop.querySelector("[data-drop-text]").textContent = file.name;
  drop.querySelector("[data-drop-detail]").textContent = `${size(file.size)}, click to choose another`;
  showErrors({});
  const name = document.getElementById("id_name");
  if (!name.value) name.value = file.name.replace(/(\.[^.]+?)(\.gz)?$/, "").slice(0, 100);
}

input.addEventListener("change", showChosen);

// The input covers the zone, so that dropping works without scripts; these only show it.
for (const type of ["dragenter", "dragover"]) drop.addEventListener(type, () => drop.classList.add("is-over"));
for (const type of ["dragleave", "drop"]) drop.addEventListener(type, () => drop.classList.remove("is-over"));

// --- errors ----------------------------------------------------------------------------------------------------------

function showErrors(errors) {
  for (const old of form.querySelectorAll('[id^="id_"][id$="_error"]')) old.remove();
  for (const control of form.querySelectorAll("[aria-invalid]")) control.removeAttribute("aria-invalid");
  refused.hidden = true;
  for (const [name, messages] of Object.entries(errors)) {
    const control = document.getElementById(`id_${name}`);
    if (!control) {
      refuse(messages.join(" "));
      continue;
    }
    const lines = messages.map((text) => element("p", { class: "field__error" }, icon("circle-alert"), element("span", {}, text)));
    const box = control.closest("[data-drop]") ?? control;
    box.after(element("div", { id: `id_${name}_error` }, ...lines));
    control.setAttribute("aria-invalid", "true");
    control.setAttribute("aria-describedby", `id_${name}_error`);
  }
  form.querySelector("[aria-invalid]")?.focus();
}

function refuse(text) {
  refused.querySelector("p").textContent = text;
  refused.hidden = false;
}

// --- sending ---------------------------------------------------------------------------------------------------------

function show(fraction) {
  progress.hidden = fraction === null;
  if (fraction === null) return;
  progress.querySelector("progress").value = fraction;
  progress.querySelector("[role=status]").textContent = fraction < 1 ? `${Math.floor(100 * fraction)} % sent` : "Sent, looking at it…";
}

function stop() {
  show(null);
  button.disabled = false;
}

function receive(request) {
  let answer = {};
  try {
    answer = JSON.parse(request.responseText);
  } catch {
    answer = { errors: { "": [request.responseText.length < 300 && request.status === 413 ? request.responseText : "The server could not take it. Try again."] } };
  }
  if (answer.location) {
    location.assign(answer.location);
    return;
  }
  stop();
  showErrors(answer.errors ?? {});
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  const source = new FormData(form).get("source");
  const [file] = input.files;
  if (source === "file" && file && file.size > limit) {
    showErrors({ file: [`The file has ${size(file.size)}; your tenant's limit is ${size(limit)}.`] });
    return;
  }
  showErrors({});
  button.disabled = true;
  const data = new FormData(form);
  data.delete(source === "file" ? "text" : "file");
  const request = new XMLHttpRequest();
  request.open("POST", form.action || location.href);
  request.setRequestHeader("X-Requested-With", "XMLHttpRequest");
  request.upload.addEventListener("progress", ({ loaded, total }) => show(loaded / total));
  request.addEventListener("load", () => receive(request));
  request.addEventListener("error", () => {
    stop();
    refuse("The connection was lost while sending. Try again, or send it in pieces over the API, which goes on where it was cut.");
  });
  show(0);
  request.send(data);
});

addEventListener("pageshow", stop);
showChosen(); // chosen before this script ran
