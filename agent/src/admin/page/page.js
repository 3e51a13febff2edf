"use strict";
// Nodes are made of elements and text only: names are tenants', and none of them is markup.
(() => {
  const API = "/api/v1/";
  const TRAFFIC_EVERY = 2000, REST_EVERY = 10000, PART = 50;
  const id = (name) => document.getElementById(name);
  // Characters that would hide, or turn the direction of text, are shown as what they are.
  const OBEYED = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\u{e0000}-\u{e007f}]/gu;
  const plain = (text) => String(text).replace(OBEYED, (c) => "\\u{" + c.codePointAt(0).toString(16) + "}");

  function el(tag, attributes, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (name === "class") made.className = value;
      else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else if (value !== undefined && value !== null) made.setAttribute(name, value);
    }
    for (const child of children.flat()) {
      if (child === undefined || child === null || child === "") continue;
      made.append(child instanceof Node ? child : document.createTextNode(plain(child)));
    }
    return made;
  }

  async function api(name, parameters, signal) {
    const query = new URLSearchParams();
    for (const [key, value] of Object.entries(parameters || {})) {
      for (const one of [value].flat()) if (one !== undefined && one !== "") query.append(key, one);
    }
    const text = query.toString();
    const answer = await fetch(API + name + (text ? "?" + text : ""), { cache: "no-store", signal });
    const value = await answer.json().catch(() => ({ error: "the agent answers " + answer.status }));
    if (!answer.ok) throw new Error(value.error || "the agent answers " + answer.status);
    return value;
  }

  const number = (value) => value >= 100 ? value.toFixed(0) : value >= 0.05 ? value.toFixed(1) : value > 0 ? "<0.1" : "0";
  const duration = (s) => s === null ? "–" : s >= 1 ? s.toFixed(2) + " s" : s >= 0.001 ? (s * 1000).toFixed(0) + " ms" : "<1 ms";
  const plural = (count, word) => count.toLocaleString("en") + " " + word + (count === 1 ? "" : "s");

  // --- Traffic: differences of two samples -------------------------------------------------

  const traffic = { last: null, rates: new Map() };

  function quantile(bounds, counts, share) {
    const total = counts.reduce((sum, count) => sum + count, 0), rank = share * total;
    if (!total) return null;
    let below = 0;
    for (let at = 0; at < counts.length; at++) {
      if (counts[at] && below + counts[at] >= rank) {
        if (at >= bounds.length) return bounds[bounds.length - 1];
        const lower = at ? bounds[at - 1] : 0;
        return lower + (bounds[at] - lower) * (rank - below) / counts[at];
      }
      below += counts[at];
    }
    return null;
  }

  const seriesKey = (kind, entry) => [kind, entry.gateway || "", entry.name].join("\n");

  function compare(before, after) {
    const seconds = Math.max(after.at - before.at, 0.001), rates = new Map(), gateways = new Map();
    for (const kind of ["listeners", "routes", "backends"]) {
      const old = new Map(before[kind].map((entry) => [seriesKey(kind, entry), entry]));
      for (const entry of after[kind]) {
        const key = seriesKey(kind, entry), was = old.get(key) || { requests: [], durations: [] };
        const since = (now, then) => (now || []).map((count, at) => Math.max(0, count - ((then || [])[at] || 0)));
        const requests = since(entry.requests, was.requests);
        const rate = {
          requests: requests.reduce((sum, count) => sum + count, 0), errors: requests[5] + requests[0],
          durations: since(entry.durations, was.durations),
          begun: entry.forwarded ? Math.max(0, entry.forwarded.begun - ((was.forwarded || {}).begun || 0)) : 0,
          open: entry.forwarded ? entry.forwarded.open : 0, seconds, bounds: after.bounds,
        };
        rates.set(key, rate);
        if (kind !== "listeners") continue;
        const sum = gateways.get(entry.gateway) || { requests: 0, errors: 0, durations: [], begun: 0, open: 0, seconds, bounds: after.bounds };
        sum.requests += rate.requests; sum.errors += rate.errors; sum.begun += rate.begun; sum.open += rate.open;
        rate.durations.forEach((count, at) => { sum.durations[at] = (sum.durations[at] || 0) + count; });
        gateways.set(entry.gateway, sum);
      }
    }
    for (const [gateway, sum] of gateways) rates.set(seriesKey("gateways", { name: gateway }), sum);
    return rates;
  }

  function showNumbers(cells, rate) {
    const texts = ["0", "0", "–", "–"];
    if (rate) {
      const counts = Array.from(rate.durations, (count) => count || 0);
      texts[0] = rate.begun || rate.open ? number(rate.begun / rate.seconds) + " conn" : number(rate.requests / rate.seconds);
      texts[1] = number(rate.errors / rate.seconds);
      texts[2] = duration(quantile(rate.bounds, counts, 0.5));
      texts[3] = duration(quantile(rate.bounds, counts, 0.99));
    }
    texts.forEach((text, at) => { if (cells[at].textContent !== text) cells[at].textContent = text; });
    cells[1].className = rate && rate.errors ? "error" : "";
  }

  async function pollTraffic() {
    const sample = await api("traffic", { limit: 1000 });
    if (traffic.last) traffic.rates = compare(traffic.last, sample);
    traffic.last = sample;
    for (const numbers of id("tree").querySelectorAll(".numbers[data-series]")) {
      showNumbers(numbers.children, traffic.rates.get(numbers.dataset.series));
    }
  }

  // --- The tree ----------------------------------------------------------------------------

  const expanded = new Set();
  let filter = "", drawing = 0, explained = [];

  const above = (data) => ({ gateway: data.gateway, port: data.port, listener: data.listener });

  // Of each kind of node: its name, what follows it, its counters, and what is below it.
  const KINDS = {
    gateway: {
      key: (it) => [it.gateway], name: (it) => it.gateway,
      note: (it) => it.addresses.slice(0, 3).join(", ") + (it.addresses.length > 3 ? " and " + (it.addresses.length - 3) + " more" : "") + (it.addresses.length ? " · " : "") + plural(it.listeners, "listener"),
      series: (it) => seriesKey("gateways", { name: it.gateway }),
      below: "listener", load: (it, part) => api("listeners", { gateway: it.gateway, ...part }),
    },
    listener: {
      key: (it) => [it.gateway, it.port, it.listener], name: (it) => it.protocol + " " + it.port + " " + it.listener,
      note: (it) => "tenant " + it.tenant + (it.hostname === "*" ? "" : " · " + it.hostname) + " · " + plural(it.rules, "rule"),
      series: (it) => seriesKey("listeners", { gateway: it.gateway, name: it.listener }),
      below: "host", load: (it, part) => api("hosts", { ...above(it), ...part }),
    },
    host: {
      key: (it) => [it.gateway, it.port, it.listener, it.host], name: (it) => it.host === "*" ? "any" : it.host,
      note: (it) => plural(it.rules, "rule"),
      below: "rule", load: (it, part) => api("routes", { ...above(it), host: it.host, ...part }),
    },
    rule: {
      key: (it) => [it.gateway, it.port, it.listener, it.host, it.match, it.rule], name: (it) => it.match,
      note: (it) => it.rule + (it.backends.length ? "" : " → " + it.action),
      series: (it) => seriesKey("routes", { name: it.route }),
      below: "backend",
      load: async (it) => ({ total: it.backends.length, items: it.backends.map((share) => ({ ...share, rule: KINDS.rule.key(it).join("\n") })) }),
    },
    backend: {
      key: (it) => [it.rule, it.backend || it.answer], name: (it) => it.backend || it.answer,
      note: (it) => it.weight === it.of ? "" : it.weight + " of " + it.of,
      series: (it) => it.backend && seriesKey("backends", { name: it.backend }),
      below: "endpoint",
      load: async (it, part) => it.backend ? api("endpoints", { backend: it.backend, ...part, q: undefined }) : { total: 0, items: [] },
      none: (it) => it.backend ? "no ready endpoint: answered 503" : "no endpoints: answered in place of a backend",
    },
    endpoint: { key: (it) => [it.address], name: (it) => it.address, note: (it) => it.out ? "asked last: " + it.out : "ready" },
  };

  // `given` are children that are known already, and shown at once.
  function treeNode(kind, data, given) {
    const of = KINDS[kind], key = kind + "\n" + of.key(data).join("\n"), series = of.series && of.series(data);
    const numbers = el("div", { class: "numbers", "data-series": series }, ["0", "1", "2", "3"].map(() => el("span")));
    if (series) showNumbers(numbers.children, traffic.rates.get(series));
    const twist = el("span", { class: "twist", "aria-hidden": "true" }, of.below ? "▸" : "");
    const row = el("div", { class: "row" }, twist,
      el("span", { class: "label" }, el("span", { class: "kind" }, kind), el("span", { class: "name" }, of.name(data)), el("span", { class: "soft" }, of.note(data))),
      numbers);
    const item = el("li", { role: "treeitem", tabindex: "-1", "aria-label": plain(kind + " " + of.name(data)) }, row);
    const node = { kind, data, key, item, loaded: 0, group: null, byKey: new Map() };
    item.portcullis = node;
    if (of.below) {
      item.setAttribute("aria-expanded", "false");
      row.addEventListener("click", () => { focusItem(item); toggle(node); });
      if (given) open(node, given);
      else if (expanded.has(key)) open(node);
    } else {
      row.addEventListener("click", () => focusItem(item));
    }
    return node;
  }

  function toggle(node) {
    if (node.item.getAttribute("aria-expanded") === "true") close(node); else return open(node);
  }

  function close(node) {
    expanded.delete(node.key);
    node.item.setAttribute("aria-expanded", "false");
    node.item.querySelector(".twist").textContent = "▸";
    if (node.group) node.group.hidden = true;
  }

  async function open(node, given) {
    if (!given) expanded.add(node.key);
    node.item.setAttribute("aria-expanded", "true");
    node.item.querySelector(".twist").textContent = "▾";
    if (node.group) { node.group.hidden = false; return node.loading; }
    node.group = el("ul", { role: "group" });
    node.item.append(node.group);
    if (given) {
      for (const child of given) addChild(node, child);
      return;
    }
    node.loading = more(node);
    return node.loading;
  }

  function addChild(node, child) {
    node.byKey.set(child.key, child);
    node.group.append(child.item);
  }

  async function more(node) {
    const of = KINDS[node.kind], button = node.group.querySelector(":scope > .more");
    let part;
    try {
      part = await of.load(node.data, { offset: node.loaded, limit: PART, q: of.below === "endpoint" ? undefined : filter });
    } catch (error) {
      if (button) button.remove();
      node.group.append(el("li", { role: "none", class: "more error" }, error.message));
      return;
    }
    if (button) button.remove();
    for (const data of part.items) {
      node.loaded++;
      const child = treeNode(of.below, data);
      if (!node.byKey.has(child.key)) addChild(node, child);
    }
    if (!part.total) node.group.append(el("li", { role: "none", class: "more soft" }, of.none ? of.none(node.data) : "nothing below it"));
    if (node.loaded < part.total && part.items.length) {
      const rest = part.total - node.loaded;
      node.group.append(el("li", { role: "none", class: "more" },
        el("button", { type: "button", onclick: () => more(node) }, "Show " + Math.min(PART, rest) + " of " + plural(rest, "more " + of.below))));
    }
  }

  const root = { kind: "root", data: {}, key: "root", item: id("tree"), group: id("tree"), loaded: 0, byKey: new Map() };
  KINDS.root = { below: "gateway", load: (_, part) => api("gateways", part) };

  async function drawTree() {
    const turn = ++drawing;
    filter = id("filter").value.trim();
    const found = filter ? await api("routes", { q: filter, limit: 100 }) : null;
    if (turn !== drawing) return;
    root.group.replaceChildren();
    root.byKey.clear();
    root.loaded = 0;
    if (found && found.total) {
      id("filter-count").textContent = plural(found.total, "rule") + (found.total > found.items.length ? ", the first " + found.items.length + " shown" : "");
      drawFound(found.items);
    } else {
      id("filter-count").textContent = found ? "no rule" : "";
      await more(root);
      if (root.byKey.size <= 3) for (const node of [...root.byKey.values()]) {
        await open(node);
        if (node.byKey.size <= 3) await Promise.all([...node.byKey.values()].map((it) => open(it)));
      }
    }
    const first = root.group.querySelector("[role=treeitem]");
    if (first) first.tabIndex = 0;
    if (!filter) await drawExplained();
  }

  // Rules that were found, below what is above them.
  function drawFound(rows) {
    const groups = (rows, names) => {
      const found = new Map();
      for (const row of rows) {
        const key = names.map((name) => row[name]).join("\n");
        if (!found.has(key)) found.set(key, []);
        found.get(key).push(row);
      }
      return [...found.values()];
    };
    for (const ofGateway of groups(rows, ["gateway"])) {
      const listeners = groups(ofGateway, ["port", "listener"]).map((ofListener) => {
        const hosts = groups(ofListener, ["host"]).map((ofHost) =>
          treeNode("host", { ...ofHost[0], rules: ofHost.length }, ofHost.map((row) => treeNode("rule", row))));
        const first = ofListener[0];
        const tenant = (first.listener.split(" ")[1] || "").split("/")[0];
        return treeNode("listener", { ...first, protocol: "port", hostname: "*", tenant, rules: ofListener.length }, hosts);
      });
      addChild(root, treeNode("gateway", { gateway: ofGateway[0].gateway, addresses: [], listeners: listeners.length }, listeners));
    }
  }

  function items() {
    return [...id("tree").querySelectorAll("[role=treeitem]")].filter((item) => item.offsetParent);
  }

  function focusItem(item) {
    for (const other of id("tree").querySelectorAll("[tabindex='0']")) other.tabIndex = -1;
    item.tabIndex = 0;
    item.focus();
  }

  id("tree").addEventListener("keydown", (event) => {
    const item = event.target.closest("[role=treeitem]");
    if (!item || event.target.tagName === "BUTTON") return;
    const all = items(), at = all.indexOf(item), node = item.portcullis, isOpen = item.getAttribute("aria-expanded");
    const go = (to) => { if (to) focusItem(to); };
    if (event.key === "ArrowDown") go(all[at + 1]);
    else if (event.key === "ArrowUp") go(all[at - 1]);
    else if (event.key === "Home") go(all[0]);
    else if (event.key === "End") go(all[all.length - 1]);
    else if (event.key === "ArrowRight") { if (isOpen === "false") open(node); else go(item.querySelector("[role=treeitem]")); }
    else if (event.key === "ArrowLeft") { if (isOpen === "true") close(node); else go(item.parentElement.closest("[role=treeitem]")); }
    else if ((event.key === "Enter" || event.key === " ") && isOpen) toggle(node);
    else return;
    event.preventDefault();
  });

  let typing;
  id("filter").addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => attempt(drawTree), 150);
  });

  // --- Explain -----------------------------------------------------------------------------

  const LEVELS = ["gateway", "listener", "host", "rule", "backend"];

  // The child of this name, of a part of the list that is not shown yet if need be.
  async function child(node, kind, at) {
    await open(node);
    const key = kind === "backend" ? node.key.slice("rule\n".length) + "\n" + at.backend : KINDS[kind].key(at).join("\n");
    const known = node.byKey.get(kind + "\n" + key);
    if (known || kind === "backend") return known;
    const where = { gateway: at.gateway, port: kind === "gateway" ? undefined : at.port, limit: 1000 };
    if (kind !== "gateway") where.listener = at.listener;
    if (kind === "host" || kind === "rule") where.host = at.host;
    for (let offset = 0; ; offset += 1000) {
      const part = await api({ gateway: "gateways", listener: "listeners", host: "hosts", rule: "routes" }[kind], { ...where, offset });
      const data = part.items.find((it) => KINDS[kind].key(it).join("\n") === key);
      if (data) {
        const made = treeNode(kind, data);
        node.byKey.set(made.key, made);
        node.group.prepend(made.item);
        return made;
      }
      if (!part.items.length || offset + 1000 >= part.total) return undefined;
    }
  }

  async function drawPath(at) {
    let node = root;
    for (const kind of LEVELS) {
      if (kind !== "gateway" && !at[kind]) break;
      node = await child(node, kind, at);
      if (!node) return undefined;
      node.item.classList.add("on-path");
    }
    if (KINDS[node.kind].below) await open(node);
    return node;
  }

  async function explain() {
    const headers = id("headers").value.split(";").map((line) => line.trim()).filter(Boolean);
    const answer = id("answer");
    let told;
    try {
      told = await api("explain", { url: id("url").value.trim(), method: id("method").value, header: headers, all: id("all").checked ? "true" : "" });
    } catch (error) {
      answer.replaceChildren(el("p", { class: "error" }, error.message));
      return;
    }
    const step = (line) => el("div", { class: "step" + (line.at ? " is-node" : "") },
      el("span", { class: "subject" }, line.subject), el("span", { class: "why" }, line.text));
    answer.replaceChildren(...told.lines.map(step),
      told.outcome === "answered" ? "" : el("p", { class: "error" }, "nothing answers"));
    explained = told.lines;
    if (id("filter").value) { id("filter").value = ""; await drawTree(); } else await drawExplained();
  }

  // On the tree as it is: nodes on the way are drawn, those beside it are marked where they are shown.
  async function drawExplained() {
    for (const old of document.querySelectorAll(".on-path, .beside")) old.classList.remove("on-path", "beside");
    for (const old of document.querySelectorAll(".because")) old.remove();
    for (const line of explained) if (line.at) because(await drawPath(line.at), line.why);
    for (const line of explained) if (line.notAt) {
      let node = root;
      for (const kind of LEVELS) {
        if (kind !== "gateway" && !line.notAt[kind]) break;
        node = node && node.byKey.get(kind + "\n" + KINDS[kind].key(line.notAt).join("\n"));
      }
      if (node) node.item.classList.add("beside");
      because(node, line.why);
    }
  }

  function because(node, why) {
    if (node && why) node.item.querySelector(".label").append(el("span", { class: "because" }, why));
  }

  // --- The next request --------------------------------------------------------------------

  const WATCH_SECONDS = 30;
  let watching = null;

  // A second click ends it.
  async function watch() {
    const answer = id("watched"), button = id("watch");
    if (watching) { watching.abort(); return; }
    let url;
    try {
      url = new URL(id("url").value.trim());
      if (!/^https?:$/.test(url.protocol)) throw new Error();
    } catch {
      answer.replaceChildren(el("p", { class: "error" }, "requests are watched for, not connections: give the URL of one, with its scheme"));
      return;
    }
    // The host of a field goes before the URL's.
    const fields = id("headers").value.split(";").map((line) => line.trim()).filter(Boolean);
    const named = fields.find((line) => /^host\s*:/i.test(line));
    const host = named ? named.slice(named.indexOf(":") + 1).trim() : url.host;
    // A browser makes %2A of no *, so that /cart* stays.
    const question = { host, path: url.pathname, method: id("method").value, header: fields.filter((line) => line !== named), seconds: WATCH_SECONDS };
    watching = new AbortController();
    button.textContent = "Stop watching";
    answer.replaceChildren(el("p", { class: "soft" }, "waiting up to " + WATCH_SECONDS + " s for the next " + question.method + " " + host + url.pathname + " …"));
    try {
      showWatched(await api("watch", question, watching.signal));
    } catch (error) {
      answer.replaceChildren(watching.signal.aborted ? "" : el("p", { class: "error" }, error.message));
    }
    watching = null;
    button.textContent = "Watch the next";
  }

  function showWatched(told) {
    const step = (subject, text, at) => el("div", { class: "step timed" },
      el("span", { class: "at" }, at === undefined ? "" : (at * 1000).toFixed(2) + " ms"),
      el("span", { class: "subject" }, subject), el("span", { class: "why" }, text));
    const ends = { complete: "all of it took ", cut: "it was cut after ", goingOn: "it goes on after " };
    const drawn = told.requests.map((request) => [
      ...request.steps.map((it) => step(it.subject, it.text, it.at)),
      el("p", { class: "soft" }, ends[request.ended] + (request.seconds * 1000).toFixed(2) + " ms" + (request.cut ? " (" + request.cut + ")" : "")
        + (request.attributes["portcullis.request_id"] ? " · request " + request.attributes["portcullis.request_id"] : "") + (request.traceId ? " · trace " + request.traceId : "")),
    ]);
    const missing = told.why ? [el("p", { class: "warning" }, told.why)] : [];
    id("watched").replaceChildren(...drawn.flat(), ...missing, ...(told.explained || []).map((line) => step(line.subject, line.text)));
  }

  id("watch").addEventListener("click", () => watch());
  id("question").addEventListener("submit", (event) => { event.preventDefault(); attempt(explain); });

  // --- Lists -------------------------------------------------------------------------------

  // A list that begins with a few entries; what was shown besides stays so when it is drawn again.
  function listed(name, endpoint, draw, wrap) {
    let shown = 20;
    return async function show() {
      const part = await api(endpoint, { limit: shown });
      const list = id(name + "-list");
      const rest = part.total - part.items.length;
      const button = rest > 0 && shown < 1000 ? el("p", {}, el("button", { type: "button", onclick: () => { shown = Math.min(1000, shown + 100); attempt(show); } }, "Show " + Math.min(100, rest) + " of " + plural(rest, "more entry").replace("entrys", "entries"))) : "";
      list.replaceChildren(...wrap(part.items.map(draw), part), button);
    };
  }

  const showProblems = listed("problems", "problems",
    (it) => el("article", { class: "problem of-" + it.severity },
      el("p", { class: "what" }, el("span", { class: it.severity }, it.severity + " "), it.object, it.part ? " · " + it.part : "", it.state ? el("span", { class: "soft" }, " " + it.state) : ""),
      el("p", { class: "why" }, it.message),
      el("p", { class: "why" }, el("span", { class: "soft" }, "What to do: "), it.remedy)),
    (drawn, part) => {
      id("problems-count").textContent = part.total ? plural(part.total, "problem") + ", the worst first" : "";
      return drawn.length ? drawn : [el("p", { class: "good" }, "None: all objects are well, and all that is configured is served.")];
    });

  function table(header, rows) {
    const row = (cells, tag) => el("tr", {}, cells.map((cell) => cell instanceof Node ? cell : el(tag, tag === "th" ? { scope: "col" } : {}, cell)));
    return el("table", {}, el("thead", {}, row(header, "th")), el("tbody", {}, rows));
  }

  const showCertificates = listed("certificates", "certificates",
    (it) => el("tr", {},
      el("td", { class: "number " + (it.daysLeft < 0 ? "error" : it.daysLeft < 14 ? "warning" : "") }, it.daysLeft < 0 ? "expired" : it.daysLeft),
      el("td", {}, new Date(it.notAfter * 1000).toISOString().slice(0, 10)),
      el("td", { class: "mono" }, it.names.slice(0, 5).join(", ") + (it.names.length > 5 ? " and " + (it.names.length - 5) + " more" : "")),
      el("td", {}, it.listener || "Gateway " + it.gateway + ", shown to backends")),
    (rows, part) => {
      id("certificates-count").textContent = part.total ? plural(part.total, "certificate") + ", those that end first at the head" : "";
      return [rows.length ? table([el("th", { scope: "col", class: "number" }, "days left"), "until", "names", "served by"], rows) : el("p", { class: "soft" }, "No listener has a certificate.")];
    });

  let nodeListeners = 20;
  async function showNode() {
    const node = await api("node", { limit: nodeListeners });
    const facts = (entries) => el("dl", {}, entries.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
    const counts = (map) => Object.entries(map).map(([name, count]) => [name, count.toLocaleString("en")]);
    const block = (title, map) => counts(map).length ? [el("h3", {}, title), facts(counts(map))] : [];
    const open = Object.values(node.connections.open).reduce((sum, count) => sum + count, 0);
    const part = (it) => it.by + (it.why ? ": " + it.why : "");
    const rest = node.listeners.total - node.listeners.items.length;
    id("node-report").replaceChildren(
      facts([["datapath", node.datapath], ["packet guard", node.guard], ["server names", node.names], ["forwarding", node.forwarding],
        ["connections", plural(open, "client connection") + " open, " + node.connections.accepted.toLocaleString("en") + " accepted, " + node.connections.kernelFlows.toLocaleString("en") + " flows in the kernel; by core: " + node.connections.cores.join(", ")]]),
      el("h3", {}, "Fallbacks"),
      node.fallbacks.length ? el("ul", {}, node.fallbacks.map((it) => el("li", {}, it.what, ": ", it.why))) : el("p", { class: "good" }, "None: everything is done in the best way."),
      ...block("Verdicts of the kernel programs", node.verdicts), ...block("Answers of the agent's own", node.ownAnswers), ...block("TLS handshakes that failed", node.handshakeFailures),
      el("h3", {}, "Listeners"),
      node.listeners.items.length ? table(["port", "listener", "served by", "steered by", "clients refused by", "budgets kept by"],
        node.listeners.items.map((it) => el("tr", {}, el("td", { class: "port" }, it.port), el("td", {}, it.parentKind + " " + it.parent + " listener " + it.listener),
          el("td", {}, part(it.servedBy)), el("td", {}, part(it.steeredBy)), el("td", {}, it.clients ? part(it.clients) : "–"), el("td", {}, it.budgets ? part(it.budgets) : "–")))) : el("p", { class: "soft" }, "none"),
      rest > 0 && nodeListeners < 1000 ? el("p", {}, el("button", { type: "button", onclick: () => { nodeListeners = Math.min(1000, nodeListeners + 100); attempt(showNode); } }, "Show " + Math.min(100, rest) + " of " + plural(rest, "more listener"))) : "");
  }

  let generation = null;
  async function showOverview() {
    const it = await api("overview");
    id("agent").textContent = plain(it.node + " · version " + it.version + " · " + it.datapath);
    id("ready").textContent = plain(it.readiness.replace(/^ok: /, "ready: "));
    id("ready").className = it.ready ? "good" : "error";
    id("size").textContent = [[it.size.gateways, "Gateway"], [it.size.listeners, "listener"], [it.size.hosts, "host"], [it.size.rules, "rule"], [it.size.backends, "backend"], [it.size.endpoints, "endpoint"]].map(([count, word]) => plural(count, word)).join(" · ");
    if (generation !== null && generation !== it.generation && !filter) await drawTree();
    generation = it.generation;
  }

  // --- What is asked, and when -------------------------------------------------------------

  async function attempt(task) {
    try {
      await task();
      return true;
    } catch (error) {
      id("ready").textContent = plain("the agent does not answer: " + error.message);
      id("ready").className = "error";
      return false;
    }
  }

  function every(interval, tasks) {
    let running = false;
    const tick = async () => {
      if (running || document.visibilityState !== "visible") return;
      running = true;
      for (const task of tasks) if (!await attempt(task)) break;
      running = false;
    };
    setInterval(tick, interval);
    document.addEventListener("visibilitychange", tick);
    return tick();
  }

  attempt(drawTree).then(() => {
    performance.mark("tree");
    every(TRAFFIC_EVERY, [pollTraffic]);
    every(REST_EVERY, [showOverview, showCertificates, showNode]);
    // The first time an agent reads the statuses of all objects for it.
    every(REST_EVERY, [showProblems]);
  });
})();
