// What the strict checks of both wires share.

/** Names of tools, documented; longer ones are said to pass, which nobody should rely on. */
export const NAME = /^[a-zA-Z0-9_-]{1,64}$/;
/** Ids of calls. */
export const ID = /^[a-zA-Z0-9_-]+$/;

export const bad = (message, status = 400) => ({ status, message });

export function isObject(value) {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/** Calls `onObject` and `onText` with each object and string inside `value`, keys included. */
export function walk(value, onObject, onText = () => {}) {
  if (typeof value === 'string') onText(value);
  else if (Array.isArray(value)) value.forEach((item) => walk(item, onObject, onText));
  else if (isObject(value)) {
    onObject(value);
    Object.entries(value).forEach(([key, item]) => {
      onText(key);
      walk(item, onObject, onText);
    });
  }
}

/** The first field of `value` that is not in `known` (words parted by spaces). */
export function unknownField(value, known, where) {
  const words = known.split(' ');
  const found = Object.keys(value ?? {}).find((key) => !words.includes(key));
  return found === undefined ? null : `${where}${found}: Extra inputs are not permitted`;
}

/** What is wrong with a list of tools, as `{name, schema, description}`. */
export function toolsFault(list) {
  const names = list.map((tool) => tool.name);
  if (names.some((name) => !NAME.test(name ?? ''))) return 'tools.name: String should match pattern';
  if (new Set(names).size !== names.length) return 'tools: Tool names must be unique.';
  if (list.some((tool) => tool.schema?.type !== 'object')) return 'tools.input_schema.type: Field required';
  if (list.some((tool) => typeof (tool.description ?? '') !== 'string'))
    return 'tools.description: Input should be a valid string';
  return null;
}

/** What no provider reads: NUL and halves of surrogate pairs. */
export function unicodeFault(body) {
  let fault = null;
  walk(
    body,
    () => {},
    (text) => {
      if (text.includes('\0')) fault = 'strings must not contain NUL';
      if (/[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/.test(text)) {
        fault = 'strings must be valid Unicode';
      }
    },
  );
  return fault;
}
