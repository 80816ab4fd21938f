"use strict";
(() => {
  const table = document.querySelector("table.rows"), body = table.tBodies[0], rows = [...body.rows];
  const heads = [...table.tHead.rows[0].cells], tools = document.querySelector("#tools");
  const text = rows.map(row => row.textContent.toLowerCase()), count = document.querySelector("#count");
  const cell = (row, place) => row.cells[place].dataset.sort ?? row.cells[place].textContent.trim();
  const chosen = new Map();
  const field = (name, input) => {
    const label = document.createElement("label");
    label.append(name + " ", input);
    tools.append(label);
    input.addEventListener("input", show);
    return input;
  };
  const search = field("Search", Object.assign(document.createElement("input"), {type: "search"}));
  heads.forEach((head, place) => {
    if (!head.hasAttribute("data-filter")) return;
    const select = document.createElement("select");
    const values = [...new Set(rows.map(row => cell(row, place)))].sort();
    select.append(new Option("all", "\0"), ...values.map(value => new Option(value || "none", value)));
    chosen.set(place, field(head.textContent.trim(), select));
  });
  function show() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    rows.forEach((row, at) => {
      row.hidden = !words.every(word => text[at].includes(word)) ||
        [...chosen].some(([place, one]) => one.value !== "\0" && cell(row, place) !== one.value);
      shown += !row.hidden;
    });
    count.textContent = `${shown} of ${rows.length} results`;
  }
  heads.forEach((head, place) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const number = head.classList.contains("num");
      const before = head.getAttribute("aria-sort");
      const down = before ? before === "ascending" : number;
      heads.forEach(one => one.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = row => cell(row, place);
      const order = (a, b) => number ? Number(a) - Number(b) : a.localeCompare(b, "en", {numeric: true});
      body.append(...[...rows].sort((a, b) => {
        const x = key(a), y = key(b);
        if (!x || !y) return (x ? 0 : 1) - (y ? 0 : 1);
        return down ? order(y, x) : order(x, y);
      }));
    });
  });
  show();
})();
