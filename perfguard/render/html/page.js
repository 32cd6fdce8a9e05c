"use strict";
// Everything that comes from a report goes into the page as text, never as markup.
(() => {
  const { lanes, cases, commits } = JSON.parse(document.getElementById("data").textContent);
  const PAGE = 200; // Rows that are made at once.
  const $ = (id) => document.getElementById(id);
  const state = { find: "", lane: "", words: new Set(), sort: "urgency", down: false };
  let limit = PAGE;

  const toneClass = (tone) => (tone === "open" ? "open-tone" : tone);

  function element(tag, properties = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(properties)) {
      if (name === "class") made.className = value;
      else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else made.setAttribute(name, value);
    }
    made.append(...children);
    return made;
  }

  function drawn(tag, attributes, text) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    if (text !== undefined) made.textContent = text;
    return made;
  }

  // The stored sessions, then this run or its process pairs, over the band of changes that do not fail.
  function plot(time, width, height, large) {
    const label = `${time.caption}, now ${time.text}` + (time.before ? `, was ${time.before}` : "");
    const svg = drawn("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
    const blocks = large ? time.blocks : [];
    const values = [time.now, ...time.sessions, ...blocks, ...(time.band || [])];
    let low = Math.min(...values), high = Math.max(...values);
    if (low === high) { low *= 0.99; high *= 1.01; }
    const left = large ? 84 : 6, right = width - (large ? 60 : 8), top = large ? 16 : 6, bottom = height - (large ? 12 : 6);
    const y = (value) => bottom - ((value - low) / (high - low)) * (bottom - top);
    const steps = Math.max(time.sessions.length, 1);
    const x = (place) => left + (place / steps) * (right - left);
    if (time.band) {
      svg.append(drawn("rect", { class: "band", x: left - 3, width: right - left + 6, y: y(time.band[1]), height: Math.max(y(time.band[0]) - y(time.band[1]), 1) }));
    }
    if (time.centre) svg.append(drawn("line", { class: "centre", x1: left - 3, x2: right + 3, y1: y(time.centre), y2: y(time.centre) }));
    const points = [...time.sessions, time.now].map((value, place) => `${x(time.sessions.length ? place : 1)},${y(value)}`);
    svg.append(drawn("polyline", { class: "path", points: points.join(" ") }));
    time.sessions.forEach((value, place) => svg.append(drawn("circle", { class: "session", cx: x(place), cy: y(value), r: large ? 4 : 3 })));
    blocks.forEach((value, place) => svg.append(drawn("circle", { class: "block", cx: right + 14 + 8 * (place % 5), cy: y(value), r: 3 })));
    svg.append(drawn("circle", { class: `now ${toneClass(time.tone)}`, cx: right, cy: y(time.now), r: large ? 7 : 4.5 }));
    if (large) svg.append(drawn("text", { x: 2, y: top + 4 }, time.high), drawn("text", { x: 2, y: bottom + 4 }, time.low));
    return large ? element("figure", {}, svg, element("figcaption", {}, time.caption)) : svg;
  }

  // A line for each process pair, through the base, its second checkout and this change.
  function pairs(time, width, height) {
    const sides = ["base", "copy of base", "this change"], values = time.pairs.flat();
    let low = Math.min(...values), high = Math.max(...values);
    if (low === high) { low *= 0.99; high *= 1.01; }
    const label = `${time.pairs.length} process pairs, ${time.pairs_low} to ${time.pairs_high}${time.pairs_change ? `: ${time.pairs_change}` : ""}`;
    const svg = drawn("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
    const x = (side) => 104 + side * ((width - 160) / 2), y = (value) => height - 40 - ((value - low) / (high - low)) * (height - 60);
    for (const pair of time.pairs) {
      svg.append(drawn("polyline", { class: "path", points: pair.map((value, side) => `${x(side)},${y(value)}`).join(" ") }));
      pair.forEach((value, side) => svg.append(drawn("circle", { class: side === 2 ? `now ${toneClass(time.tone)}` : "session", cx: x(side), cy: y(value), r: 5 })));
    }
    sides.forEach((side, place) => svg.append(drawn("text", { x: x(place), y: height - 8, "text-anchor": "middle" }, side)));
    svg.append(drawn("text", { x: 2, y: 24 }, time.pairs_high), drawn("text", { x: 2, y: height - 36 }, time.pairs_low));
    return element("figure", {}, svg, element("figcaption", {}, label));
  }

  function percent(ratio) {
    return `${ratio >= 1 ? "+" : "−"}${Math.abs(100 * (ratio - 1)).toFixed(1)} %`;
  }

  // Cells between the first two and the last have a label where a narrow page hides the head.
  function grid(name, head, rows) {
    const made = rows.map(({ cells, tone }) => element("tr", {}, ...cells.map((cell, place) => element("td",
      place >= 2 && place < head.length - 1 ? { "data-label": head[place] } : { class: place === 0 ? tone : "" }, cell))));
    return element("table", { class: name }, element("thead", {}, element("tr", {}, ...head.map((title) => element("th", {}, title)))), element("tbody", {}, ...made));
  }

  function bar(share) {
    const fill = element("i");
    fill.style.width = `${Math.min(100 * share, 100)}%`;
    return [`${(100 * share).toFixed(0)} %`, element("div", { class: "bar" }, fill)];
  }

  function detail(one) {
    const cell = element("td", { colspan: "7" });
    const room = document.body.clientWidth - 60; // Texts are not scaled down on a telephone.
    const width = room > 1000 ? room / 2 - 10 : Math.min(640, room);
    cell.append(element("div", { class: "plots" }, ...one.times.map((time) => plot(time, width, 260, true)),
      ...one.times.filter((time) => time.pairs.length).map((time) => pairs(time, width, 260))));
    cell.append(grid("verdicts", ["Verdict", "Metric", "Baseline", "Now", "Change", "Limit", "Why"], one.verdicts.map((verdict) => ({
      cells: [verdict.word, verdict.metric, verdict.before, verdict.after, verdict.change, verdict.limit, verdict.reason],
      tone: toneClass(verdict.tone) }))));
    if (one.records.length) {
      cell.append(element("h3", {}, "History"), grid("verdicts records", ["Commit", "Recorded", "What changed", "Anchor", "Reason"],
        one.records.map((cells) => ({ cells: commits ? [element("a", { href: commits + cells[0] }, cells[0]), ...cells.slice(1)] : cells, tone: "" }))));
    }
    for (const [text, share] of one.roofline) cell.append(element("div", { class: "roof" }, text, ...(share ? [": ", ...bar(share)] : [])));
    for (const line of one.numerics) cell.append(element("p", {}, `numerics: ${line.filter(Boolean).join(" · ")}`));
    if (one.inputs) cell.append(element("p", {}, `inputs: ${one.inputs}`));
    for (const note of one.notes) cell.append(element("p", {}, `note: ${note}`));
    for (const [label, command] of one.commands) cell.append(element("p", {}, `${label}:`), element("code", { class: "command" }, command));
    return element("tr", { class: "detail" }, cell);
  }

  function row(one) {
    const time = one.times[0];
    const button = element("button", { type: "button", class: `open ${toneClass(one.tone)}`, "aria-expanded": "false" }, one.word);
    const made = element("tr", { class: "row" });
    made.addEventListener("click", () => {
      if (String(getSelection())) return; // The user copies a name.
      const open = button.getAttribute("aria-expanded") === "true";
      button.setAttribute("aria-expanded", String(!open));
      if (open) made.nextSibling.remove();
      else made.after(detail(one));
    });
    const times = element("td", { class: "number" }, time ? time.text : "");
    if (time && time.before) times.append(element("span", { class: "was" }, ` was ${time.before}`));
    const history = element("td");
    if (time) history.append(plot(time, 200, 48, false));
    const share = element("td", { class: "share number" });
    if (one.share) share.append(...bar(one.share));
    const name = element("td", { class: "name", title: one.suite }, one.name);
    if (one.cause) name.append(element("div", { class: "cause" }, one.cause));
    made.append(
      element("td", {}, button), element("td", {}, lanes[one.lane]), name, times,
      element("td", { class: `number ${toneClass(one.tone)}` }, one.ratio ? percent(one.ratio) : ""), history, share);
    return made;
  }

  const text = new Map();
  for (const one of cases) {
    const parts = [lanes[one.lane], one.suite, one.name, one.word, one.cause, ...one.verdicts.flatMap((verdict) => [verdict.metric, verdict.reason])];
    text.set(one, parts.join(" ").toLowerCase());
  }

  function matches(one, withWords = true) {
    if (state.lane !== "" && one.lane !== Number(state.lane)) return false;
    if (withWords && state.words.size && !state.words.has(one.word)) return false;
    return state.find.toLowerCase().split(/\s+/).every((term) => text.get(one).includes(term));
  }

  const keys = {
    urgency: (one) => one.urgency, lane: (one) => lanes[one.lane], name: (one) => one.name,
    time: (one) => (one.times[0] ? one.times[0].now : null), ratio: (one) => one.ratio, share: (one) => one.share,
  };

  // Rows without a value come last in either direction.
  function compare(a, b) {
    const [left, right] = [keys[state.sort](a), keys[state.sort](b)];
    if (left === null || right === null) return (left === null) - (right === null);
    const order = typeof left === "string" ? left.localeCompare(right, undefined, { numeric: true }) : left - right;
    if (order) return state.down ? -order : order;
    return a.urgency - b.urgency || (b.ratio || 0) - (a.ratio || 0);
  }

  function words() {
    const counts = new Map();
    for (const one of cases) if (matches(one, false)) counts.set(one.word, (counts.get(one.word) || 0) + 1);
    const order = [...new Set([...cases].sort((a, b) => a.urgency - b.urgency).map((one) => one.word))];
    $("words").replaceChildren(...order.map((word) => element("button", {
      type: "button", "data-word": word, "aria-pressed": String(state.words.has(word)),
      onclick: () => { state.words.has(word) ? state.words.delete(word) : state.words.add(word); limit = PAGE; show(); },
    }, `${word} ${counts.get(word) || 0}`)));
  }

  function show() {
    const found = cases.filter((one) => matches(one)).sort(compare);
    $("cases").tBodies[0].replaceChildren(...found.slice(0, limit).map(row));
    const empty = { 4: (one) => one.times.length, 5: (one) => one.ratio, 6: (one) => one.times.length, 7: (one) => one.share };
    for (const [place, has] of Object.entries(empty)) {
      const hidden = !found.some(has); // Of a lane that is not timed.
      for (const cell of document.querySelectorAll(`#cases > thead th:nth-child(${place}), .row > td:nth-child(${place})`)) cell.hidden = hidden;
    }
    $("shown").textContent = `${found.length} of ${cases.length} cases`;
    $("more").hidden = found.length <= limit;
    for (const button of document.querySelectorAll("#cases > thead button")) {
      const sorted = button.dataset.sort === state.sort;
      button.parentElement.setAttribute("aria-sort", sorted ? (state.down ? "descending" : "ascending") : "none");
    }
    words();
    write();
  }

  // The address holds what is shown, so that a user can send it.
  function write() {
    const given = new URLSearchParams();
    if (state.find) given.set("find", state.find);
    if (state.lane !== "") given.set("lane", lanes[Number(state.lane)]);
    if (state.words.size) given.set("verdict", [...state.words].join("|"));
    if (state.sort !== "urgency" || state.down) given.set("sort", (state.down ? "-" : "") + state.sort);
    const hash = given.size ? `#${given}` : "";
    if (hash !== location.hash) history.replaceState(null, "", hash || location.pathname + location.search);
  }

  function read() {
    const given = new URLSearchParams(location.hash.slice(1));
    const known = new Set(cases.map((one) => one.word));
    state.find = given.get("find") || "";
    const lane = lanes.indexOf(given.get("lane"));
    state.lane = lane < 0 ? "" : String(lane);
    state.words = new Set((given.get("verdict") || "").split("|").filter((word) => known.has(word)));
    const sort = given.get("sort") || "urgency";
    state.down = sort.startsWith("-");
    state.sort = sort.replace(/^-/, "") in keys ? sort.replace(/^-/, "") : "urgency";
    $("find").value = state.find;
    $("lane").value = state.lane;
  }

  lanes.forEach((name, place) => $("lane").append(element("option", { value: String(place) }, name)));
  $("filters").addEventListener("submit", (event) => event.preventDefault());
  $("find").addEventListener("input", () => { state.find = $("find").value.trim(); limit = PAGE; show(); });
  $("lane").addEventListener("change", () => { state.lane = $("lane").value; limit = PAGE; show(); });
  $("more").addEventListener("click", () => { limit += PAGE; show(); });
  for (const button of document.querySelectorAll("#cases > thead button")) {
    button.addEventListener("click", () => {
      const falling = ["time", "ratio", "share"].includes(button.dataset.sort); // The largest comes first.
      state.down = state.sort === button.dataset.sort ? !state.down : falling;
      state.sort = button.dataset.sort;
      show();
    });
  }
  addEventListener("hashchange", () => { read(); show(); });
  read();
  show();
})();
