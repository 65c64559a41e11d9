//! What the controller remembers: shares of guesses that were right, means of times.

/// Rounds over which the present rate of tokens is taken, and about as many that costs remember.
pub(super) const MEMORY: f64 = 24.0;
/// Weight of what is believed of a claim before anything is seen, in guesses.
pub(super) const PRIOR: f64 = 4.0;
/// Guesses that a belief remembers.
const WINDOW: f64 = 32.0;

/// Right ones among the latest.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Score {
    pub seen: f64,
    pub right: f64,
}

impl Score {
    pub fn add(&mut self, right: bool) {
        self.add_claim(1.0, right);
    }

    /// Adds a guess that counts as much as was claimed of it.
    pub fn add_claim(&mut self, claim: f64, right: bool) {
        let keep = 1.0 - 1.0 / WINDOW;
        self.seen = self.seen * keep + claim;
        self.right = self.right * keep + f64::from(u8::from(right));
    }

    /// Forgets down to the share `least`, but for what keeps the estimate from going back to where it began.
    pub fn fade(&mut self, least: f64) {
        let keep = (2.0 * PRIOR / self.seen).clamp(least, 1.0);
        self.seen *= keep;
        self.right *= keep;
    }

    /// The chance of the next, given what was believed before, with what weight.
    pub fn chance(&self, prior: f64, weight: f64) -> f64 {
        (self.right + weight * prior) / (self.seen + weight)
    }
}

/// A running mean: exact at first, then forgetting.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mean {
    pub value: f64,
    pub seen: f64,
}

impl Mean {
    pub fn add(&mut self, x: f64) {
        self.seen = (self.seen + 1.0).min(MEMORY);
        self.value += (x - self.value) / self.seen;
    }
}
