// What each family of the vendor's models takes: forms of thinking, efforts, and where its cache begins.

const ALWAYS = { adaptive: true, enabled: false, disabled: true, effort: true, bareForced: true };
const OLD = { adaptive: false, enabled: true, disabled: true, effort: false, bareForced: true };

/**
 * By a part of the name, the newest first. `disabled`: may thinking be switched off (`high`: only up to that
 * effort); `between`: the form of its own that one model has instead; `bareForced`: may a tool be forced at
 * all; `on`: thinks although nothing was asked; `minimum`: tokens below which nothing is cached.
 */
const FAMILIES = [
  [/fable-5|mythos-5/, { ...ALWAYS, disabled: false, bareForced: false, on: true, minimum: 512 }],
  [/opus-5-5/, { ...ALWAYS, disabled: false, bareForced: false, on: true, minimum: 512 }],
  [/sonnet-5-5/, { ...ALWAYS, disabled: false, between: true, bareForced: false, on: true, minimum: 512 }],
  [/haiku-5-5/, { ...ALWAYS, disabled: 'high', on: true, minimum: 512 }],
  [/opus-5/, { ...ALWAYS, disabled: 'high', on: true, minimum: 512 }],
  [/sonnet-5/, { ...ALWAYS, on: true, minimum: 1024 }],
  [/opus-4-8/, { ...ALWAYS, minimum: 1024 }],
  [/opus-4-7/, { ...ALWAYS, minimum: 2048 }],
  [/opus-4-6/, { ...ALWAYS, enabled: true, minimum: 4096 }],
  [/sonnet-4-6/, { ...ALWAYS, enabled: true, minimum: 1024 }],
  [/opus-4-5/, { ...OLD, effort: true, minimum: 4096 }],
  [/sonnet-4-5/, { ...OLD, minimum: 1024 }],
  [/haiku-4-5/, { ...OLD, minimum: 4096 }],
  [/claude/, { ...OLD, minimum: 1024 }],
];

/** What a model takes; `null` for a model that is not the vendor's. */
export function takes(model) {
  const name = model.toLowerCase().replaceAll('.', '-');
  return FAMILIES.find(([part]) => part.test(name))?.[1] ?? null;
}

const EFFORTS = ['low', 'medium', 'high', 'xhigh', 'max'];

const refused = (form, instead) =>
  `"thinking.type.${form}" is not supported for this model. Use "thinking.type.${instead}"`;

/** What is wrong with how a body asks for thinking and effort. */
export function thinkingFault(body) {
  const { thinking, output_config: config, tool_choice: choice } = body;
  const family = takes(body.model);
  const effort = config?.effort;
  if (effort !== undefined && !EFFORTS.includes(effort))
    return `output_config.effort: Input should be ${EFFORTS.join(', ')}`;
  if (effort !== undefined && family?.effort === false)
    return 'output_config.effort: This model does not support the effort parameter.';
  const forced = ['any', 'tool'].includes(choice?.type);
  if (forced && (thinking?.type === 'enabled' || family?.bareForced === false))
    return 'tool_choice: Thinking may not be enabled when tool_choice forces tool use.';
  return thinking === undefined ? null : formFault(body, family, effort);
}

const FORMS = {
  adaptive: 'type display',
  enabled: 'type budget_tokens display',
  disabled: 'type',
  between_tools: 'type',
};

function formFault(body, family, effort) {
  const { thinking } = body;
  const known = FORMS[thinking?.type];
  if (!known) return 'thinking.type: Input should be a valid form of thinking';
  const words = known.split(' ');
  const extra = Object.keys(thinking).find((key) => !words.includes(key));
  if (extra) return `thinking.${thinking.type}.${extra}: Extra inputs are not permitted`;
  if ('display' in thinking && !['summarized', 'omitted'].includes(thinking.display))
    return 'thinking.display: Input should be summarized or omitted';
  const beyondHigh = ['xhigh', 'max'].includes(effort);
  switch (thinking.type) {
    case 'adaptive':
      return family?.adaptive === false ? refused('adaptive', 'enabled') : null;
    case 'enabled':
      return family?.enabled === false ? refused('enabled', 'adaptive') : budgetFault(body);
    case 'disabled':
      if (family?.disabled === false)
        return refused('disabled', family.between ? 'between_tools' : 'adaptive');
      return family?.disabled === 'high' && beyondHigh ? refused('disabled', 'adaptive') : null;
    default:
      if (!family?.between) return refused('between_tools', 'adaptive');
      return beyondHigh ? 'thinking: between_tools needs an effort of at most high' : null;
  }
}

function budgetFault({ thinking, max_tokens: most }) {
  if (!(thinking.budget_tokens >= 1024)) return 'thinking.budget_tokens: should be at least 1024';
  return thinking.budget_tokens >= most ? '`max_tokens` must be greater than budget_tokens' : null;
}

/** Whether an answer to this body may think. */
export function thinks(body) {
  const form = body.thinking?.type;
  const family = takes(body.model);
  return form === undefined ? family === null || family.on === true : form !== 'disabled';
}
