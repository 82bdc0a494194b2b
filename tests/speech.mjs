// Answers of a model, composed once and spoken in either wire: parts → server-sent events.
//
// A part is `{text: [...]}`, `{thinking: [...], signature?}`, `{redacted}`, or `{call: {id, name, args:
// [...]}}`; each list holds the deltas. A single string stands for one delta. `usage` is in the words of
// Siskin and is translated.

const list = (value) => (Array.isArray(value) ? value : value === undefined ? [] : [value]);

let made = 0;

/** A fresh id, as a vendor would make one. */
export function freshId(prefix) {
  made += 1;
  return `${prefix}_${made.toString(36).padStart(6, '0')}`;
}

export const text = (...deltas) => ({ text: deltas });
export const thinking = (...deltas) => ({ thinking: deltas, signature: freshId('sig') });
export const call = (name, args = {}, id = freshId('toolu')) => ({
  call: {
    id,
    name,
    args: typeof args === 'string' || Array.isArray(args) ? list(args) : [JSON.stringify(args)],
  },
});

const USAGE = { input: 11, cacheRead: 100, cacheWrite: 7, output: 5 };

/** The events of a whole answer in `wire` (`anthropic` or `openai`), each as `{event?, data}`. */
export function events(wire, parts, { stop, usage = {}, model = 'scripted' } = {}) {
  const sum = { ...USAGE, ...usage };
  const reason = stop ?? (parts.some((part) => part.call) ? 'calls' : 'end');
  return wire === 'anthropic' ? anthropic(parts, reason, sum, model) : openai(parts, reason, sum, model);
}

/**
 * Events as the bytes of a stream. `eol` may be LF, CRLF or CR; `last` false leaves the last blank line
 * out.
 */
export function encode(list_, { eol = '\n', space = ' ', last = true, before = '' } = {}) {
  const out = list_.map(
    ({ event, data }) => `${event ? `event:${space}${event}${eol}` : ''}data:${space}${data}${eol}${eol}`,
  );
  const joined = before.replaceAll('\n', eol) + out.join('');
  return Buffer.from(last ? joined : joined.slice(0, -eol.length));
}

function anthropic(parts, reason, usage, model) {
  const stops = { end: 'end_turn', calls: 'tool_use', max: 'max_tokens', refused: 'refusal' };
  const event = (data) => ({ event: data.type, data: JSON.stringify(data) });
  const out = [
    event({
      type: 'message_start',
      message: {
        id: freshId('msg'),
        type: 'message',
        role: 'assistant',
        model,
        content: [],
        stop_reason: null,
        usage: {
          input_tokens: usage.input,
          cache_read_input_tokens: usage.cacheRead,
          cache_creation_input_tokens: usage.cacheWrite,
          ...(usage.hourly === undefined ? {} : { cache_creation: lives(usage) }),
          output_tokens: 1,
        },
      },
    }),
  ];
  parts.forEach((part, index) => {
    const [block, deltas] = anthropicBlock(part);
    out.push(event({ type: 'content_block_start', index, content_block: block }));
    for (const delta of deltas) out.push(event({ type: 'content_block_delta', index, delta }));
    out.push(event({ type: 'content_block_stop', index }));
  });
  out.push(
    event({
      type: 'message_delta',
      delta: { stop_reason: stops[reason] ?? reason, stop_sequence: null },
      usage: { output_tokens: usage.output },
    }),
  );
  out.push(event({ type: 'message_stop' }));
  return out;
}

/** What was written to the cache, by how long it lives. */
const lives = ({ cacheWrite, hourly }) => ({
  ephemeral_5m_input_tokens: cacheWrite - hourly,
  ephemeral_1h_input_tokens: hourly,
});

function anthropicBlock(part) {
  if (part.text)
    return [{ type: 'text', text: '' }, list(part.text).map((t) => ({ type: 'text_delta', text: t }))];
  if (part.redacted) return [{ type: 'redacted_thinking', data: part.redacted }, []];
  if (part.thinking) {
    const deltas = list(part.thinking).map((t) => ({ type: 'thinking_delta', thinking: t }));
    if (part.signature) deltas.push({ type: 'signature_delta', signature: part.signature });
    return [{ type: 'thinking', thinking: '', signature: '' }, deltas];
  }
  const { id, name, args } = part.call;
  return [
    { type: 'tool_use', id, name, input: {} },
    ['', ...args].map((piece) => ({ type: 'input_json_delta', partial_json: piece })),
  ];
}

function openai(parts, reason, usage, model) {
  const stops = { end: 'stop', calls: 'tool_calls', max: 'length', refused: 'content_filter' };
  const base = { id: freshId('chatcmpl'), object: 'chat.completion.chunk', created: 1, model };
  const chunk = (delta, finish = null, more = {}) => ({
    data: JSON.stringify({ ...base, choices: [{ index: 0, delta, finish_reason: finish }], ...more }),
  });
  const out = [chunk({ role: 'assistant', content: '' })];
  let index = -1;
  for (const part of parts) {
    if (part.text) for (const t of list(part.text)) out.push(chunk({ content: t }));
    else if (part.thinking) for (const t of list(part.thinking)) out.push(chunk({ reasoning_content: t }));
    else if (part.call) {
      index += 1;
      const { id, name, args } = part.call;
      out.push(chunk({ tool_calls: [{ index, id, type: 'function', function: { name, arguments: '' } }] }));
      for (const piece of args)
        out.push(chunk({ tool_calls: [{ index, function: { arguments: piece } }] }));
    }
  }
  out.push(chunk({}, stops[reason] ?? reason));
  out.push({
    data: JSON.stringify({
      ...base,
      choices: [],
      usage: {
        prompt_tokens: usage.input + usage.cacheRead + usage.cacheWrite,
        completion_tokens: usage.output,
        prompt_tokens_details: { cached_tokens: usage.cacheRead },
      },
    }),
  });
  out.push({ data: '[DONE]' });
  return out;
}
