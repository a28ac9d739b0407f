// The parts of a mix: added from a template, removed, numbered as Django's formset wants them; each shows the options of
// its chosen kind. On a phone the options of a grader are far below the choice: what was tapped is scrolled to.

document.documentElement.classList.add("scripted");

const parts = document.querySelector("[data-parts]");
const template = document.querySelector("[data-part-template]");
const total = document.getElementById("id_parts-TOTAL_FORMS");
const add = document.querySelector("[data-add-part]");
const most = Number(document.getElementById("id_parts-MAX_NUM_FORMS").value);

const graders = document.querySelector(".choices--graders");
let byPointer = false; // whoever goes through the choices with the arrow keys stays among them

graders.addEventListener("pointerdown", () => { byPointer = true; });
graders.addEventListener("keydown", () => { byPointer = false; });
graders.addEventListener("change", (event) => {
  if (event.target.name !== "type" || !byPointer) return;
  const options = event.target.closest(".grader").querySelector(".grader__options");
  if (options.getBoundingClientRect().top > innerHeight * 0.8) options.scrollIntoView({ block: "center", behavior: "smooth" });
});

function renumber() {
  [...parts.children].forEach((part, index) => {
    for (const node of part.querySelectorAll("[name], [id], [for], [aria-describedby]")) {
      for (const attribute of ["name", "id", "for", "aria-describedby"]) {
        const value = node.getAttribute(attribute);
        if (value) node.setAttribute(attribute, value.replace(/parts-(\d+|__prefix__)-/g, `parts-${index}-`));
      }
    }
  });
  total.value = parts.children.length;
  add.disabled = parts.children.length >= most;
}

function showOptions(part) {
  const kind = part.querySelector("select[name$='-type']").value;
  for (const options of part.querySelectorAll("[data-kind]")) {
    options.toggleAttribute("data-unchosen", options.dataset.kind !== kind);
  }
}

[...parts.children].forEach(showOptions);

parts.addEventListener("change", (event) => {
  if (event.target.name?.endsWith("-type")) showOptions(event.target.closest(".part"));
});

add.addEventListener("click", () => {
  parts.append(template.content.cloneNode(true));
  renumber();
  showOptions(parts.lastElementChild);
  dispatchEvent(new CustomEvent("editors", { detail: parts.lastElementChild }));
  parts.lastElementChild.querySelector("input").focus();
});

parts.addEventListener("click", (event) => {
  const button = event.target.closest("[data-remove-part]");
  if (!button) return;
  button.closest(".part").remove();
  renumber();
  (parts.lastElementChild?.querySelector("input") ?? add).focus();
});
