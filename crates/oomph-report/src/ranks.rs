//! Several recordings of one run, in words and rows that every renderer has: who died of what, who stands out, and what did the same.

use crate::shared::{Named, findings_of};
use oomph_explain::ranks::{Difference, Group, Member, Odd, groups, has_died};
use oomph_explain::{DeviceExplanation, Explanation, Outcome};
use oomph_words::{bytes, grouped, harmless, printable};
use std::cmp::Ordering;

/// So many devices have a row each; of more, those that did the same share one.
const MOST_ROWS: usize = 16;
/// How many groups that stand out are told of in words.
const MOST_ODD: usize = 8;
/// How many differences of one.
const MOST_DIFFERENCES: usize = 3;
/// How long a list of numbers may be.
const LONGEST_LIST: usize = 40;

/// A device, or several that did the same.
pub(crate) struct Row {
    /// The file, or the files: `rank[0-6,8-511].oomph`.
    pub(crate) name: String,
    /// How many devices.
    pub(crate) count: usize,
    /// The device's number; of several that differ, none.
    pub(crate) device: String,
    pub(crate) allocated: String,
    pub(crate) reserved: String,
    pub(crate) ran_out: &'static str,
    pub(crate) codes: String,
}

/// Several recordings, compared.
pub(crate) struct Ranks<'a> {
    all: &'a [Named<'a>],
    pub(crate) groups: Vec<Group>,
}

impl<'a> Ranks<'a> {
    pub(crate) fn of(all: &'a [Named<'a>]) -> Self {
        let explanations: Vec<&Explanation> = all.iter().map(|named| named.explanation).collect();
        Self { all, groups: groups(&explanations) }
    }

    pub(crate) fn device(&self, member: Member) -> &'a DeviceExplanation {
        &self.all[member.recording].explanation.devices[member.device]
    }

    /// The worse of two: one that died before one that did not, then the one that reserved more.
    pub(crate) fn badness(&self, member: Member) -> (bool, u64) {
        let device = self.device(member);
        (has_died(device), device.peak.reserved.bytes)
    }

    /// How many devices there are in all.
    pub(crate) fn devices(&self) -> usize {
        self.groups.iter().map(|group| group.members.len()).sum()
    }

    /// Whether a row stands for several.
    pub(crate) fn shares_rows(&self) -> bool {
        self.devices() > MOST_ROWS
    }

    /// The table: what stands out first, where rows are shared.
    pub(crate) fn rows(&self) -> Vec<Row> {
        if !self.shares_rows() {
            let mut members: Vec<Member> =
                self.groups.iter().flat_map(|group| group.members.iter().copied()).collect();
            members.sort_by_key(|member| (member.recording, member.device));
            return members.iter().map(|&member| self.row(&[member])).collect();
        }
        let (odd, many): (Vec<&Group>, Vec<&Group>) =
            self.groups.iter().partition(|group| group.odd.is_some());
        odd.into_iter().chain(many).map(|group| self.row(&group.members)).collect()
    }

    fn row(&self, members: &[Member]) -> Row {
        let devices: Vec<&DeviceExplanation> = members.iter().map(|&member| self.device(member)).collect();
        let explanation = self.all[members[0].recording].explanation;
        let codes: Vec<&str> = findings_of(explanation, devices[0]).map(|finding| finding.code).collect();
        Row {
            name: self.names(members),
            count: members.len(),
            device: match devices.iter().all(|one| one.ordinal == devices[0].ordinal) {
                true => devices[0].ordinal.to_string(),
                false => "each".to_owned(),
            },
            allocated: range(devices.iter().map(|one| one.peak.allocated.bytes)),
            reserved: range(devices.iter().map(|one| one.peak.reserved.bytes)),
            ran_out: match (has_died(devices[0]), devices.iter().all(|one| one.ooms.is_empty())) {
                (true, _) => "died",
                (false, false) => "caught",
                (false, true) => "no",
            },
            codes: codes.join(" "),
        }
    }

    /// Their files, as one word where they differ in a number only.
    pub(crate) fn names(&self, members: &[Member]) -> String {
        let mut names: Vec<String> =
            members.iter().map(|member| harmless(self.all[member.recording].name)).collect();
        names.dedup();
        let of_one_file = members.len() == 1 && self.all[members[0].recording].explanation.devices.len() > 1;
        match of_one_file {
            true => self.name(members[0]),
            false => printable(&together(&names)),
        }
    }

    fn name(&self, member: Member) -> String {
        let Named { name, explanation } = self.all[member.recording];
        match explanation.devices.len() {
            1 => printable(name),
            _ => format!("device {} of {}", self.device(member).ordinal, printable(name)),
        }
    }

    /// What is to be said before any table: whose death it was, and who stands out.
    pub(crate) fn words(&self) -> Vec<String> {
        let mut said: Vec<String> = self.death().into_iter().collect();
        let odd = self.groups.iter().filter(|group| !has_died(self.device(group.worst)));
        let odd: Vec<(&Group, &Odd)> =
            odd.filter_map(|group| group.odd.as_ref().map(|odd| (group, odd))).collect();
        for (group, odd) in odd.iter().take(MOST_ODD) {
            let many = &self.groups[odd.beside].members;
            let verb = if group.members.len() == 1 { "stands out" } else { "stand out" };
            said.push(format!(
                "{} {verb} from the {} like {}: {}.",
                self.names(&group.members),
                grouped(many.len() as u64),
                self.name(many[0]),
                self.differences(odd).join("; ")
            ));
        }
        if odd.len() > MOST_ODD {
            let more = grouped((odd.len() - MOST_ODD) as u64);
            said.push(format!("{more} more groups stand out: they are in the table."));
        }
        if self.shares_rows() && self.groups.len() == 1 {
            said.push(format!("All {} did the same, within 2 %.", grouped(self.devices() as u64)));
        }
        said
    }

    /// Who ran out of memory first, and whether it held more than the others.
    fn death(&self) -> Option<String> {
        let died: Vec<Member> = (self.groups.iter().flat_map(|group| &group.members))
            .copied()
            .filter(|&member| has_died(self.device(member)))
            .collect();
        // Recordings of one run: of a single one, or where all died at once, the findings say it.
        let total = self.devices();
        if died.is_empty() || total < 2 {
            return None;
        }
        let fatal_of =
            |member: Member| self.device(member).ooms.iter().find(|oom| oom.outcome == Outcome::Fatal);
        let when = |member: &Member| fatal_of(*member).and_then(|oom| oom.time);
        // Who was first is known where all have times.
        let knows_first = died.iter().all(|member| when(member).is_some());
        let first = *died.iter().min_by_key(|member| when(member).unwrap_or(i64::MAX))?;
        let group = self.groups.iter().find(|group| group.members.contains(&first))?;
        let (name, device) = (self.name(first), self.device(first));
        let fatal = fatal_of(first)?;
        let asked = format!("asking for {} at {}", bytes(fatal.size), harmless(&fatal.place.short()));
        let mut said = match (died.len(), total - died.len()) {
            (1, 1) => format!("{name} ran out of memory, {asked}; the other did not."),
            (1, others) => {
                format!("{name} ran out of memory, {asked}; the {} others did not.", grouped(others as u64))
            }
            (several, _) => {
                let (several, total) = (grouped(several as u64), grouped(total as u64));
                let place = if knows_first { "first" } else { "among them" };
                format!("{several} of {total} ran out of memory, {name} {place}, {asked}.")
            }
        };
        let held = |one: &Difference| matches!(one, Difference::Held { here, there, .. } | Difference::Reserved { here, there } if here > there);
        match &group.odd {
            Some(odd) if odd.differences.iter().any(held) => {
                let more = Odd {
                    beside: odd.beside,
                    differences: odd.differences.iter().filter(|one| held(one)).cloned().collect(),
                };
                said += &format!(" It held more than they did: {}.", self.differences(&more).join("; "));
            }
            Some(odd) => {
                let beside = self.device(self.groups[odd.beside].worst).peak.allocated.bytes;
                let would_hold = device.peak.allocated.bytes.saturating_add(fatal.size);
                said += &match would_hold > beside.saturating_add(beside / 50) {
                    true => format!(
                        " With that it would hold {} more than they do at most.",
                        bytes(would_hold - beside)
                    ),
                    false => " It held no more than they did at their peaks.".to_owned(),
                };
            }
            None => {}
        }
        if died.len() < total && self.all.len() > 1 {
            said += " If they are ranks of one run, what the others report of NCCL (a time-out, a lost connection) follows from that.";
        }
        Some(said)
    }

    fn differences(&self, odd: &Odd) -> Vec<String> {
        // What a finding says in words is better said once, by the finding.
        let mut words: Vec<String> = odd.differences.iter().take(MOST_DIFFERENCES).map(difference).collect();
        if odd.differences.len() > MOST_DIFFERENCES {
            words.push(format!("and {} more", odd.differences.len() - MOST_DIFFERENCES));
        }
        words
    }
}

fn difference(one: &Difference) -> String {
    match one {
        Difference::Died => "it ran out of memory".to_owned(),
        Difference::Lived => "it did not run out of memory".to_owned(),
        Difference::Held { kind, here, there, line } => {
            let (sign, difference) =
                if here > there { ("more", here - there) } else { ("less", there - here) };
            let of_kind = format!("{} {sign} of {}", bytes(difference), kind.name());
            let beside = format!("({} instead of {})", bytes(*here), bytes(*there));
            match line {
                None => format!("{of_kind} {beside}"),
                Some((place, part)) => {
                    let place = harmless(&place.short());
                    match part.cmp(&difference) {
                        Ordering::Less => format!("{of_kind} {beside}, {} of it at {place}", bytes(*part)),
                        Ordering::Equal => format!("{of_kind} at {place} {beside}"),
                        // The line makes something of another kind as well.
                        Ordering::Greater => format!("{} {sign} at {place}", bytes(*part)),
                    }
                }
            }
        }
        Difference::Reserved { here, there } => {
            format!("{} reserved instead of {}", bytes(*here), bytes(*there))
        }
        Difference::Found { code, title } => format!("{code}, {title}"),
        Difference::NotFound { code, .. } => format!("it has no {code}"),
    }
}

/// One number, or the least and the most.
fn range(values: impl Iterator<Item = u64> + Clone) -> String {
    let (least, most) = (values.clone().min().unwrap_or(0), values.max().unwrap_or(0));
    match (bytes(least), bytes(most)) {
        (least, most) if least == most => most,
        (least, most) => format!("{least}–{most}"),
    }
}

/// Names that differ in one number become one: `rank[0-6,8-511].oomph`.
pub(crate) fn together(names: &[String]) -> String {
    let short = in_a_row(names).filter(|row| row.numbers.len() <= LONGEST_LIST);
    match (names, short) {
        ([], _) => String::new(),
        ([one], _) => one.clone(),
        (_, Some(Numbered { before, numbers, after })) => format!("{before}[{numbers}]{after}"),
        ([first, rest @ ..], None) => format!("{first} and {} more", grouped(rest.len() as u64)),
    }
}

/// Names that differ in one number.
struct Numbered {
    before: String,
    /// `0-6,8-511`.
    numbers: String,
    after: String,
}

/// What several names have in common, and the numbers in which they differ; none where they differ in more.
fn in_a_row(names: &[String]) -> Option<Numbered> {
    let letters: Vec<Vec<char>> = names.iter().map(|name| name.chars().collect()).collect();
    let [first, rest @ ..] = &letters[..] else { return None };
    if rest.is_empty() {
        return None;
    }
    let same = |get: &dyn Fn(&[char]) -> Option<char>| {
        get(first).is_some() && rest.iter().all(|one| get(one) == get(first))
    };
    let from_the_end =
        |one: &[char], at: usize| one.len().checked_sub(at + 1).and_then(|place| one.get(place).copied());
    let mut before = (0..).take_while(|&at| same(&|one| one.get(at).copied())).count();
    let mut after = (0..).take_while(|&at| same(&|one| from_the_end(one, at))).count();
    // A number is not taken apart: 10 and 11.
    while before > 0 && first[before - 1].is_ascii_digit() {
        before -= 1;
    }
    while after > 0 && first[first.len() - after].is_ascii_digit() {
        after -= 1;
    }
    let number = |one: &Vec<char>| -> Option<u64> {
        let end = one.len().checked_sub(after).filter(|&end| end > before)?;
        // Zeros in front are part of a name: they would be lost.
        let padded = one[before] == '0' && end - before > 1;
        (!padded).then(|| one[before..end].iter().collect::<String>().parse().ok())?
    };
    let mut numbers = letters.iter().map(number).collect::<Option<Vec<u64>>>()?;
    numbers.sort_unstable();
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for one in numbers {
        match runs.last_mut() {
            Some((_, last)) if last.saturating_add(1) >= one => *last = one,
            _ => runs.push((one, one)),
        }
    }
    let run = |&(from, to): &(u64, u64)| match to - from {
        0 => from.to_string(),
        _ => format!("{from}-{to}"),
    };
    Some(Numbered {
        before: first[..before].iter().collect(),
        numbers: runs.iter().map(run).collect::<Vec<_>>().join(","),
        after: first[first.len() - after..].iter().collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_differ_in_a_number_become_one() {
        let names = |all: &[&str]| together(&all.iter().map(|&one| one.to_owned()).collect::<Vec<_>>());
        assert_eq!(names(&["rank0.oomph"]), "rank0.oomph");
        assert_eq!(names(&["r/rank0.oomph", "r/rank1.oomph", "r/rank10.oomph"]), "r/rank[0-1,10].oomph");
        assert_eq!(names(&["rank10.oomph", "rank11.oomph", "rank12.oomph"]), "rank[10-12].oomph");
        assert_eq!(names(&["1", "2", "21"]), "[1-2,21]");
        assert_eq!(names(&["a.oomph", "b.oomph", "c.oomph"]), "a.oomph and 2 more");
        assert_eq!(names(&["x1", "x1"]), "x1 and 1 more");
        let far: Vec<String> = (0..100).map(|one| format!("rank{}.pickle", 2 * one)).collect();
        assert_eq!(together(&far), "rank0.pickle and 99 more");
        assert_eq!(names(&["ä1", "ä22"]), "ä[1,22]");
        assert_eq!(names(&["w00", "w01", "w10"]), "w00 and 2 more", "zeros in front would be lost");
    }
}
