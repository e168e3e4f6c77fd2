//! Choices that make one life of a pod differ from another.

/// Supplies choices: of a random script, or of each script in turn.
#[derive(Debug, Default, Clone)]
pub(super) struct Choices {
    script: Vec<usize>,
    used: Vec<(usize, usize)>,
}

impl Choices {
    pub(super) fn of(script: Vec<usize>) -> Self {
        Self { script, used: Vec::new() }
    }

    /// Returns a number below `count`; 0 after the end of the script.
    pub(super) fn pick(&mut self, count: usize) -> usize {
        let picked = self.script.get(self.used.len()).map_or(0, |choice| choice % count);
        self.used.push((picked, count));
        picked
    }

    /// Returns true for one of `count` choices.
    pub(super) fn rarely(&mut self, count: usize) -> bool {
        self.pick(count) == count - 1
    }

    /// Returns the script after this one, of those that differ in their first `depth` choices.
    pub(super) fn next(self, depth: usize) -> Option<Self> {
        let mut script: Vec<(usize, usize)> = self.used.into_iter().take(depth).collect();
        while let Some((picked, count)) = script.pop() {
            if picked + 1 < count {
                let earlier = script.into_iter().map(|(picked, _)| picked);
                return Some(Self::of(earlier.chain([picked + 1]).collect()));
            }
        }
        None
    }
}
