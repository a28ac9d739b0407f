// Building DOM without markup strings: text stays text, whatever a completion contains.

/** Element with attributes and children; a child that is a string becomes a text node. */
export function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== false && value != null) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

/** An icon of the sprite, whose address the page names. */
export function icon(name) {
  const namespace = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(namespace, "svg");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const use = document.createElementNS(namespace, "use");
  use.setAttribute("href", `${document.documentElement.dataset.icons}#${name}`);
  svg.append(use);
  return svg;
}

/** The JSON a page carries in <script type="application/json" id="...">. */
export function pageData(id) {
  return JSON.parse(document.getElementById(id).textContent);
}
