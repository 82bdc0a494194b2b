//! What a model takes: from the provider's own list, and where that does not tell, by the model's name.
//!
//! Facts of models age fast, so the list goes first ([`super::models`]); the table here knows the families of
//! one vendor only. At another vendor's address nothing is assumed: what is not told is not sent.

/// Every word for how hard to think that any provider knows, from the least to the most.
pub const EFFORTS: [&str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];

/// A set of [`EFFORTS`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Efforts(u8);

const LOW_TO_HIGH: Efforts = Efforts(0b001_1100);
const LOW_TO_MAX: Efforts = Efforts(0b111_1100);

impl Efforts {
    /// No word.
    pub const NONE: Efforts = Efforts(0);
    /// All words.
    pub const ALL: Efforts = Efforts(0b111_1111);

    /// Puts a word in or takes it out; one that is not known changes nothing.
    pub fn set(&mut self, word: &str, in_it: bool) {
        if let Some(at) = EFFORTS.iter().position(|known| *known == word) {
            self.0 = if in_it { self.0 | 1 << at } else { self.0 & !(1 << at) };
        }
    }

    /// Whether a word is in it.
    pub fn has(self, word: &str) -> bool {
        self.words().any(|known| known == word)
    }

    /// Its words, from the least to the most.
    pub fn words(self) -> impl Iterator<Item = &'static str> {
        EFFORTS.into_iter().enumerate().filter(move |(at, _)| self.0 & 1 << at != 0).map(|(_, word)| word)
    }
}

/// The ways in which a model can be asked to think.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ways {
    /// the model decides how much
    pub adaptive: bool,
    /// so many tokens
    pub budget: bool,
}

/// What a model takes; `None` is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// tokens of its context
    pub context_tokens: Option<u64>,
    /// most tokens of one answer
    pub output_tokens: Option<u64>,
    /// how it can be asked to think
    pub thinking: Option<Ways>,
    /// how hard it can be asked to think
    pub efforts: Option<Efforts>,
}

/// Parts of names, in the order in which they are tried, and what these models take.
const FAMILIES: [(&[&str], Facts); 10] = [
    (&["claude-3-7"], old(64_000)),
    (&["claude-3-5"], old(8192)),
    (&["claude-3", "claude-2", "claude-instant"], old(4096)),
    (&["opus-4-0", "opus-4-1", "opus-4-2"], old(32_000)),
    (&["sonnet-4-0", "sonnet-4-2"], old(64_000)),
    (&["opus-4-5"], Facts { thinking: ways(false, true), efforts: Some(LOW_TO_HIGH), ..old(64_000) }),
    (&["sonnet-4-5", "haiku-4-5"], Facts { thinking: ways(false, true), ..old(64_000) }),
    (&["opus-4-6"], new(true, Efforts(LOW_TO_HIGH.0 | 1 << 6))),
    (&["sonnet-4-6"], new(true, LOW_TO_HIGH)),
    // the newest take the same, and so, until the list tells, does what is not known yet
    (&["opus-4-7", "opus-4-8", ""], new(false, LOW_TO_MAX)),
];

const fn ways(adaptive: bool, budget: bool) -> Option<Ways> {
    Some(Ways { adaptive, budget })
}

/// Before thinking could be asked for in a way that is still known.
const fn old(output_tokens: u64) -> Facts {
    Facts {
        context_tokens: Some(200_000),
        output_tokens: Some(output_tokens),
        thinking: ways(false, false),
        efforts: Some(Efforts::NONE),
    }
}

const fn new(budget: bool, efforts: Efforts) -> Facts {
    Facts { context_tokens: None, output_tokens: None, thinking: ways(true, budget), efforts: Some(efforts) }
}

impl Facts {
    /// What the family of a model's name takes. Names that are not known get what new models of the vendor
    /// take, but at another vendor's URL nothing.
    pub fn by_name(model: &str, base_url: &str) -> Facts {
        let name = model.to_ascii_lowercase().replace('.', "-");
        let host = base_url.split("://").nth(1).unwrap_or(base_url).split(['/', ':']).next().unwrap_or("");
        let own = host == "anthropic.com" || host.ends_with(".anthropic.com");
        if !own && !name.contains("claude") {
            return Facts::default();
        }
        // The first of their kind had no second number.
        let name = match name.as_str() {
            name if name.ends_with("opus-4") || name.ends_with("sonnet-4") => format!("{name}-0"),
            _ => name,
        };
        let found = FAMILIES.iter().find(|(parts, _)| parts.iter().any(|part| name.contains(part)));
        found.map_or(Facts::default(), |(_, facts)| *facts)
    }

    /// These, and what they do not know from `other`.
    pub fn or(self, other: Facts) -> Facts {
        Facts {
            context_tokens: self.context_tokens.or(other.context_tokens),
            output_tokens: self.output_tokens.or(other.output_tokens),
            thinking: self.thinking.or(other.thinking),
            efforts: self.efforts.or(other.efforts),
        }
    }

    /// With a context of at most `tokens`, if there is such a limit.
    pub fn within(self, tokens: Option<u64>) -> Facts {
        let context_tokens = match (self.context_tokens, tokens) {
            (Some(own), Some(most)) => Some(own.min(most)),
            (own, most) => own.or(most),
        };
        Facts { context_tokens, ..self }
    }

    /// The most tokens of an answer to ask for, if `wanted` are configured: no more than the model can give,
    /// and at most half of its context, since servers refuse a request whose answer would not fit beside it.
    pub fn answer_tokens(&self, wanted: u64) -> u64 {
        let half = self.context_tokens.map_or(u64::MAX, |tokens| tokens / 2);
        wanted.min(self.output_tokens.unwrap_or(u64::MAX)).min(half).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = "https://api.anthropic.com/v1";

    fn words(facts: Facts) -> Vec<&'static str> {
        facts.efforts.unwrap_or_default().words().collect()
    }

    #[test]
    fn every_family_of_the_vendors_table_is_known_by_its_names() {
        let low_to_high = ["low", "medium", "high"].as_slice();
        let all = ["low", "medium", "high", "xhigh", "max"].as_slice();
        for (names, ways, efforts) in [
            (
                [
                    "claude-fable-5",
                    "fable-5-1",
                    "mythos-5",
                    "claude-opus-5-5",
                    "claude-sonnet-5-5-20260928",
                    "claude-haiku-5-5-20261001",
                    "claude-opus-5",
                    "claude-sonnet-5",
                    "claude-opus-4-8",
                    "claude-opus-4.7",
                ]
                .as_slice(),
                (true, false),
                all,
            ),
            (&["claude-opus-4-6"], (true, true), &["low", "medium", "high", "max"]),
            (&["claude-sonnet-4.6"], (true, true), low_to_high),
            (&["claude-opus-4-5-20251101"], (false, true), low_to_high),
            (&["claude-sonnet-4-5", "claude-haiku-4.5"], (false, true), &[]),
            (
                &[
                    "claude-3-5-haiku-latest",
                    "claude-3-opus-20240229",
                    "claude-2.1",
                    "claude-opus-4-1",
                    "claude-sonnet-4-20250514",
                    "claude-opus-4",
                    "claude-sonnet-4",
                ],
                (false, false),
                &[],
            ),
        ] {
            for name in names {
                let facts = Facts::by_name(name, OWN);
                let found = facts.thinking.unwrap();
                assert_eq!((found.adaptive, found.budget), ways, "{name}");
                assert_eq!(words(facts), efforts, "{name}");
            }
        }
    }

    #[test]
    fn at_another_address_only_the_vendors_names_say_anything() {
        for name in ["gemma3", "qwen3:4b", "deepseek-chat"] {
            assert_eq!(Facts::by_name(name, "http://127.0.0.1:8080"), Facts::default());
        }
        let facts = Facts::by_name("anthropic/claude-sonnet-5", "https://openrouter.ai/api");
        assert!(facts.thinking.unwrap().adaptive);
        assert_eq!(Facts::by_name("x", "https://anthropic.com.example"), Facts::default());
    }

    #[test]
    fn an_answer_is_never_asked_longer_than_the_model_gives_or_half_its_context() {
        let of = |context_tokens, output_tokens| Facts { context_tokens, output_tokens, ..Facts::default() };
        assert_eq!(of(None, None).answer_tokens(16_000), 16_000);
        assert_eq!(of(Some(200_000), Some(8192)).answer_tokens(16_000), 8192);
        assert_eq!(of(Some(4096), None).answer_tokens(16_000), 2048);
        assert_eq!(of(Some(1), Some(0)).answer_tokens(16_000), 1);
    }

    #[test]
    fn what_is_told_wins_over_the_name_and_the_smallest_context_over_all() {
        let told = Facts { efforts: Some(Efforts::NONE), context_tokens: Some(9), ..Facts::default() };
        let both = told.or(Facts::by_name("claude-sonnet-5", OWN));
        assert_eq!((words(both), both.context_tokens), (vec![], Some(9)));
        assert!(both.thinking.unwrap().adaptive);
        assert_eq!(both.within(Some(5)).context_tokens, Some(5));
        assert_eq!(both.within(Some(50)).context_tokens, Some(9));
        assert_eq!(Facts::default().within(Some(5)).context_tokens, Some(5));
        assert_eq!(both.within(None), both);
    }

    #[test]
    fn a_set_of_efforts_keeps_the_words_that_are_known() {
        let mut efforts = Efforts::NONE;
        for (word, in_it) in [("max", true), ("low", true), ("loud", true), ("high", true), ("high", false)] {
            efforts.set(word, in_it);
        }
        assert_eq!(efforts.words().collect::<Vec<_>>(), ["low", "max"]);
        assert!(efforts.has("max") && !efforts.has("high") && !efforts.has("loud"));
        assert_eq!(Efforts::ALL.words().collect::<Vec<_>>(), EFFORTS);
    }
}
