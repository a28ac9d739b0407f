// <button data-dialog="id"> opens a modal <dialog>; <button data-close> inside closes it. Menus are <details class="menu">.

export function initDialogs() {
  document.addEventListener("click", (event) => {
    const opener = event.target.closest("[data-dialog]");
    if (opener) document.getElementById(opener.dataset.dialog).showModal();
    const closer = event.target.closest("[data-close]");
    if (closer) closer.closest("dialog").close();
    if (event.target.nodeName === "DIALOG") event.target.close(); // a click on the backdrop
  });
}

export function initMenus() {
  const open = () => document.querySelectorAll("details.menu[open]");
  document.addEventListener("click", (event) => {
    for (const menu of open()) if (!menu.contains(event.target)) menu.open = false;
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    for (const menu of open()) {
      menu.open = false;
      menu.querySelector("summary").focus();
    }
  });
}
