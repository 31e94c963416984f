//! Values in the order in which each of them occurs first.

/// The values, each once.
pub fn distinct<T: PartialEq>(values: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut once = Vec::new();
    for value in values {
        if !once.contains(&value) {
            once.push(value);
        }
    }
    once
}

/// The values by their keys.
pub fn grouped<K: PartialEq, V>(pairs: impl IntoIterator<Item = (K, V)>) -> Vec<(K, Vec<V>)> {
    let mut groups: Vec<(K, Vec<V>)> = Vec::new();
    for (key, value) in pairs {
        match groups.iter_mut().find(|(known, _)| *known == key) {
            Some((_, values)) => values.push(value),
            None => groups.push((key, vec![value])),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_occurrence_decides_the_order() {
        assert_eq!(distinct([3, 1, 3, 2, 1]), [3, 1, 2]);
        assert_eq!(grouped([('b', 1), ('a', 2), ('b', 3)]), [('b', vec![1, 3]), ('a', vec![2])]);
    }
}
