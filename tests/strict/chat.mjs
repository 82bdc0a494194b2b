// What strict servers of chat completions refuse: `null`, or the status and message that one would send.

import { bad, ID, isObject, NAME, toolsFault, unicodeFault, unknownField } from './common.mjs';

const FIELDS =
  'model messages tools tool_choice stream stream_options max_tokens max_completion_tokens ' +
  'reasoning_effort parallel_tool_calls';
const MESSAGE_FIELDS = {
  system: 'role content',
  user: 'role content',
  assistant: 'role content tool_calls reasoning_content',
  tool: 'role content tool_call_id',
};
/** What the strictest templates take as an id. */
const NINE = /^[a-zA-Z0-9]{9}$/;
const ALTERNATE =
  'After the optional system message, conversation roles must alternate user/assistant/user/assistant/...';

/**
 * The first thing about `body` that strict servers would refuse. `wantReasoning`: calls must carry their
 * reasoning; `refuse`: fields that this server does not know; `template`: as the strictest chat templates
 * want it, no user's text right after a tool's result and ids of nine letters and digits.
 */
export function checkOpenai(body, { wantReasoning = false, refuse = [], template = false } = {}) {
  if (!isObject(body)) return bad('the body must be a JSON object');
  const named = refuse.find((field) => field in body);
  if (named) return bad(`Unrecognized request argument supplied: ${named}`);
  const extra = unknownField(body, FIELDS, '');
  if (extra) return bad(`Unrecognized request argument supplied: ${extra.split(':')[0]}`);
  if (typeof body.model !== 'string' || !body.model) return bad('you must provide a model parameter');
  const fault = limitFault(body) ?? declared(body.tools) ?? unicodeFault(body);
  if (fault) return bad(fault);
  const { messages } = body;
  if (!Array.isArray(messages) || messages.length === 0) return bad("'messages' must not be empty");
  const found = messagesFault(messages, { wantReasoning, template });
  if (found) return bad(found);
  const called = messages.some((message) => message.tool_calls);
  return called && !body.tools?.length ? bad('tools is required when messages have tool calls') : null;
}

function limitFault(body) {
  if ('max_tokens' in body && 'max_completion_tokens' in body)
    return 'Setting max_tokens and max_completion_tokens at the same time is not supported.';
  for (const field of ['max_tokens', 'max_completion_tokens'])
    if (field in body && !(Number.isInteger(body[field]) && body[field] > 0))
      return `${field} must be a positive integer`;
  if ('stream_options' in body && body.stream !== true)
    return "The 'stream_options' parameter is only allowed when 'stream' is enabled.";
  return null;
}

function declared(tools) {
  if (tools === undefined) return null;
  if (!Array.isArray(tools) || tools.length === 0) return '[] is too short - tools';
  const odd = tools.find((tool) => tool?.type !== 'function' || !isObject(tool.function));
  if (odd) return 'tools: type must be function';
  const extra = tools
    .map((tool) => unknownField(tool.function, 'name description parameters strict', 'tools.function.'))
    .find(Boolean);
  return (
    extra ??
    toolsFault(
      tools.map(({ function: { name, description, parameters } }) => ({
        name,
        description,
        schema: parameters,
      })),
    )
  );
}

function messagesFault(messages, options) {
  const ids = new Set();
  let open = [];
  for (let at = 0; at < messages.length; at += 1) {
    const message = messages[at];
    if (message.role !== 'tool' && open.length) {
      return (
        "An assistant message with 'tool_calls' must be followed by tool messages responding to each " +
        `'tool_call_id'. The following tool_call_ids did not have response messages: ${open}`
      );
    }
    if (message.role === 'tool') {
      if (!open.includes(message.tool_call_id)) return `unexpected tool_call_id ${message.tool_call_id}`;
      open = open.filter((id) => id !== message.tool_call_id);
    }
    const found = messageFault(messages, at, ids, options);
    if (found) return found;
    open = message.role === 'assistant' ? (message.tool_calls ?? []).map((call) => call.id) : open;
  }
  if (open.length) return `tool_call_ids did not have response messages: ${open}`;
  if (messages.at(-1).role === 'assistant') return 'Cannot have assistant message at the end';
  if (messages.at(-1).role === 'system') return 'Conversation must have a user message';
  return null;
}

function messageFault(messages, at, ids, options) {
  const message = messages[at];
  const before = messages[at - 1]?.role;
  const known = MESSAGE_FIELDS[message.role];
  if (!known) return `messages[${at}]: unknown role ${message.role}`;
  const extra = unknownField(message, known, `messages[${at}].`);
  if (extra) return extra;
  if (!('content' in message)) return `messages[${at}]: content is missing`;
  switch (message.role) {
    case 'system':
      if (at > 0) return 'System message must be at the beginning.';
      return typeof message.content === 'string' && message.content.trim()
        ? null
        : 'system content must not be empty';
    case 'tool':
      return typeof message.content === 'string' ? null : 'invalid tool content';
    case 'user':
      if (typeof message.content !== 'string' || !message.content.trim())
        return 'user content must not be empty';
      if (before === 'user') return ALTERNATE;
      if (options.template && before === 'tool') return `${ALTERNATE} (a user right after a tool)`;
      return null;
    default:
      return assistantFault(message, before, ids, options);
  }
}

function assistantFault(message, before, ids, { wantReasoning, template }) {
  const list = message.tool_calls ?? [];
  if (before === 'assistant') return ALTERNATE;
  if (!['user', 'tool'].includes(before)) return 'Conversation must start with a user message';
  if ('tool_calls' in message && list.length === 0) return '[] is too short - tool_calls';
  if (![null, undefined].includes(message.content) && typeof message.content !== 'string')
    return 'invalid message content type';
  if (list.length === 0 && (typeof message.content !== 'string' || !message.content.trim())) {
    return 'invalid message content type: assistant without content';
  }
  if (message.content && !message.content.trim()) return 'assistant content must not be blank';
  if (wantReasoning && list.length && !message.reasoning_content) {
    return 'The `reasoning_content` in the thinking mode must be passed back';
  }
  return list.map((call) => callFault(call, ids, template)).find(Boolean) ?? null;
}

function callFault(call, ids, template) {
  const extra =
    unknownField(call, 'id type function', 'tool_calls.') ??
    unknownField(call.function, 'name arguments', 'tool_calls.function.');
  if (extra) return extra;
  if (!ID.test(call.id ?? '')) return 'tool_calls: id is missing or malformed';
  if (template && !NINE.test(call.id))
    return `Tool call id was ${call.id} but must be a-z, A-Z, 0-9, with a length of 9.`;
  if (ids.has(call.id)) return 'tool_calls: ids must be unique';
  ids.add(call.id);
  if (call.type !== 'function') return 'tool_calls: type must be function';
  if (!NAME.test(call.function?.name ?? '')) return 'tool_calls: bad name';
  try {
    if (isObject(JSON.parse(call.function.arguments))) return null;
  } catch {
    // falls through to the refusal
  }
  return 'invalid tool call arguments';
}
