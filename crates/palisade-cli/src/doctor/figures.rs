//! Parses the text of `/metrics`.

/// The metrics of a server, as text.
pub(super) struct Figures<'a>(&'a str);

impl<'a> Figures<'a> {
    pub(super) const fn new(text: &'a str) -> Self {
        Self(text)
    }

    /// Returns every series of a metric: its labels as written, and its value.
    pub(super) fn all(&self, name: &str) -> impl Iterator<Item = (&'a str, u64)> {
        self.0.lines().filter_map(move |line| {
            let rest = line.strip_prefix(name)?;
            let (labels, value) = match rest.strip_prefix('{') {
                Some(rest) => rest.split_once("} ")?,
                None => ("", rest.strip_prefix(' ')?),
            };
            Some((labels, value.trim().parse().ok()?))
        })
    }

    /// Returns the sum of a metric's series; `None` if it has none.
    pub(super) fn sum(&self, name: &str) -> Option<u64> {
        let values = self.all(name).map(|(_, value)| value);
        values.reduce(u64::saturating_add)
    }
}

/// Returns the value of a label. Names of limits need no escapes.
pub(super) fn label<'a>(labels: &'a str, name: &str) -> Option<&'a str> {
    let start = labels.find(&format!("{name}=\""))? + name.len() + 2;
    labels.get(start..)?.split('"').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_are_told_apart_by_whole_names() {
        let text = "# TYPE a gauge\na 3\na_b 5\na_total{x=\"1\",y=\"two\"} 7\na_total{x=\"2\",y=\"z\"} 1\n";
        let figures = Figures::new(text);
        assert_eq!(figures.sum("a"), Some(3));
        assert_eq!(figures.sum("a_total"), Some(8));
        assert_eq!(figures.sum("b"), None);
        let (labels, _) = figures.all("a_total").next().unwrap();
        assert_eq!(label(labels, "y"), Some("two"));
    }
}
