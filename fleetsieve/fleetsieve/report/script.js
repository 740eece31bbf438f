// What a page does beyond being read: values under the pointer or the arrow keys, one workload alone.
"use strict";
{
  const tip = document.getElementById("tip");
  let here = null;

  // Told once, so that the browser does not show its own box as well.
  const told = new WeakMap();
  const words = (mark) => {
    if (!told.has(mark)) {
      const title = mark.querySelector("title");
      told.set(mark, title.textContent);
      title.remove();
    }
    return told.get(mark);
  };

  const show = (mark) => {
    if (mark === here) return;
    hide();
    here = mark;
    mark.classList.add("here");
    tip.textContent = words(mark);
    tip.hidden = false;
    const at = mark.getBoundingClientRect(), box = tip.getBoundingClientRect();
    const room = document.documentElement.clientWidth - box.width - 8;
    tip.style.left = `${Math.max(8, Math.min(at.x + at.width / 2 - box.width / 2, room)) + scrollX}px`;
    const above = at.y - box.height - 6;
    tip.style.top = `${(above > 0 ? above : at.bottom + 6) + scrollY}px`;
  };

  const hide = () => {
    here?.classList.remove("here");
    here = null;
    tip.hidden = true;
    tip.style.left = tip.style.top = "0";
  };

  const step = (chart, by) => {
    const marks = [...chart.querySelectorAll(".mark")];
    if (!marks.length) return;
    const at = marks.indexOf(here);
    show(marks[at < 0 ? (by > 0 ? 0 : marks.length - 1) : (at + by + marks.length) % marks.length]);
  };

  document.addEventListener("pointerover", ({ target }) => {
    const mark = target.closest?.(".mark");
    if (mark) show(mark);
    else if (target !== tip) hide();
  });
  document.addEventListener("focusout", hide);
  document.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const chart = document.activeElement?.closest?.(".chart");
    if (event.key === "Escape") hide();
    if (!by || !chart) return;
    step(chart, by);
    event.preventDefault();
  });

  let chosen = "";
  const choose = () => {
    for (const group of document.querySelectorAll(".workload"))
      group.hidden = chosen !== "" && group.dataset.workload !== chosen;
  };

  const offer = () => {
    const groups = [...document.querySelectorAll(".workload")];
    if (groups.length < 2 || document.querySelector(".chooser")) return;
    if (!groups.some((group) => group.dataset.workload === chosen)) chosen = "";
    const select = document.createElement("select");
    select.append(new Option("all", ""));
    for (const { dataset } of groups) select.append(new Option(dataset.workload, dataset.workload));
    select.value = chosen;
    select.addEventListener("change", () => { chosen = select.value; choose(); });
    const label = document.createElement("label");
    label.className = "chooser";
    label.append("Workload: ", select);
    groups[0].before(label);
    choose();
  };

  let folded = [];
  addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details:not([open])")];
    for (const one of folded) one.open = true;
  });
  addEventListener("afterprint", () => { for (const one of folded) one.open = false; });

  document.addEventListener("swapped", () => { hide(); offer(); });
  offer();
}
