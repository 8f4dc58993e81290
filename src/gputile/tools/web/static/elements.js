// Creates elements of the document. Text is never inserted as HTML, because anyone who can create a pod chooses names.

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === false || value === null) continue;
    if (name === "onclick" || name === "onsubmit") made.addEventListener(name.slice(2), value);
    else if (name === "width") made.style.width = value;
    else if (name === "hue") made.style.setProperty("--h", value);
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat()) {
    if (child !== undefined && child !== null && child !== false) made.append(child);
  }
  return made;
}

// An element for text that others wrote. <bdi> isolates the direction of its script from the text around it.
export function nameElement(text, attributes = {}) {
  const made = element("bdi", attributes);
  made.textContent = text;
  return made;
}

export function byId(id) {
  return document.getElementById(id);
}

// Replace the options of a <select>. The chosen value remains an option even if no node has that value any more.
export function fillSelect(select, values, all) {
  const before = select.value;
  const wanted = ["", ...values, ...(before && !values.includes(before) ? [before] : [])];
  const current = [...select.options].map((option) => option.value);
  if (wanted.length === current.length && wanted.every((value, number) => value === current[number])) return;
  select.replaceChildren(...wanted.map((value) => {
    const option = element("option", { value });
    option.textContent = value || all;
    return option;
  }));
  select.value = before;
}
