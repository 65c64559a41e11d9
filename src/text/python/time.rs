//! `strftime` in the C locale, UTC.

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// A moment's parts.
struct Date {
    year: u64,
    /// 0 to 11.
    month: usize,
    /// 1 to 31.
    day: u64,
    /// 0 to 365.
    day_of_year: u64,
    /// Sunday is 0.
    weekday: u64,
    hour: u64,
    minute: u64,
    second: u64,
    stamp: u64,
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

impl Date {
    /// `stamp` seconds after the start of 1970; from the year 9999 on, time stands still.
    fn new(stamp: u64) -> Self {
        let stamp = stamp.min(253_402_300_799);
        let (days, time) = (stamp / 86_400, stamp % 86_400);
        let (mut year, mut day) = (1970, days);
        while day >= 365 + u64::from(is_leap(year)) {
            day -= 365 + u64::from(is_leap(year));
            year += 1;
        }
        let day_of_year = day;
        let lengths = [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
        let mut month = 0;
        while day >= lengths[month] {
            day -= lengths[month];
            month += 1;
        }
        let (hour, minute, second) = (time / 3600, time / 60 % 60, time % 60);
        Self { year, month, day: day + 1, day_of_year, weekday: (days + 4) % 7, hour, minute, second, stamp }
    }

    fn hour12(&self) -> u64 {
        (self.hour + 11) % 12 + 1
    }

    /// Week of the year, where weeks start on `first` (Sunday is 0) and the first begins with the year's first such day.
    fn week(&self, first: u64) -> u64 {
        (self.day_of_year + 7 - (self.weekday + 7 - first) % 7) / 7
    }

    /// The ISO 8601 year and week.
    fn iso_week(&self) -> (u64, u64) {
        let from_monday = (self.weekday + 6) % 7;
        // The week belongs to the year its Thursday is in.
        let thursday = self.day_of_year as i64 + 3 - from_monday as i64;
        let length = 365 + i64::from(is_leap(self.year));
        match thursday {
            t if t < 0 => (self.year - 1, ((t + 365 + i64::from(is_leap(self.year - 1))) / 7 + 1) as u64),
            t if t >= length => (self.year + 1, 1),
            t => (self.year, (t / 7 + 1) as u64),
        }
    }
}

/// `format` with the parts of a moment in place of the directives of `strftime`, glibc's `%-d` and the like included;
/// others stay as they are.
pub(super) fn strftime(format: &str, seconds: u64) -> String {
    let date = Date::new(seconds);
    let mut out = String::new();
    let mut rest = format;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        let directive = &rest[at + 1..];
        let (bare, letter) = match directive.strip_prefix('-') {
            Some(after) => (true, after.chars().next()),
            None => (false, directive.chars().next()),
        };
        match letter.and_then(|letter| part(&date, letter)) {
            Some(text) => {
                let digits = text.trim_start_matches(['0', ' ']);
                let is_number = text.trim_start().bytes().all(|b| b.is_ascii_digit());
                out.push_str(match bare && is_number {
                    true if digits.is_empty() => "0",
                    true => digits,
                    false => &text,
                });
                rest = &directive[usize::from(bare) + 1..];
            }
            None => {
                out.push('%');
                rest = directive;
            }
        }
    }
    out + rest
}

fn part(date: &Date, letter: char) -> Option<String> {
    let (month, day) = (MONTHS[date.month], DAYS[date.weekday as usize]);
    let inner = |format: &str| strftime(format, date.stamp);
    Some(match letter {
        'Y' => date.year.to_string(),
        'C' => format!("{:02}", date.year / 100),
        'y' => format!("{:02}", date.year % 100),
        'm' => format!("{:02}", date.month + 1),
        'd' => format!("{:02}", date.day),
        'e' => format!("{:2}", date.day),
        'j' => format!("{:03}", date.day_of_year + 1),
        'B' => month.to_owned(),
        'b' | 'h' => month[..3].to_owned(),
        'A' => day.to_owned(),
        'a' => day[..3].to_owned(),
        'w' => date.weekday.to_string(),
        'u' => ((date.weekday + 6) % 7 + 1).to_string(),
        'U' => format!("{:02}", date.week(0)),
        'W' => format!("{:02}", date.week(1)),
        'V' => format!("{:02}", date.iso_week().1),
        'G' => date.iso_week().0.to_string(),
        'g' => format!("{:02}", date.iso_week().0 % 100),
        'H' => format!("{:02}", date.hour),
        'k' => format!("{:2}", date.hour),
        'I' => format!("{:02}", date.hour12()),
        'l' => format!("{:2}", date.hour12()),
        'p' => if date.hour < 12 { "AM" } else { "PM" }.to_owned(),
        'P' => if date.hour < 12 { "am" } else { "pm" }.to_owned(),
        'M' => format!("{:02}", date.minute),
        'S' => format!("{:02}", date.second),
        'f' => "000000".to_owned(),
        's' => date.stamp.to_string(),
        'D' | 'x' => inner("%m/%d/%y"),
        'F' => inner("%Y-%m-%d"),
        'T' | 'X' => inner("%H:%M:%S"),
        'R' => inner("%H:%M"),
        'r' => inner("%I:%M:%S %p"),
        'c' => inner("%a %b %e %H:%M:%S %Y"),
        'Z' => "UTC".to_owned(),
        'z' => "+0000".to_owned(),
        'n' => "\n".to_owned(),
        't' => "\t".to_owned(),
        '%' => "%".to_owned(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_the_calendar_s() {
        let cases = [
            (0, "Thu 01 January 1970 001 12AM"),
            (951_782_400, "Tue 29 February 2000 060 12AM"),
            (1_735_689_599, "Tue 31 December 2024 366 11PM"),
            (4_107_542_400, "Mon 01 March 2100 060 12AM"),
            (u64::MAX, "Fri 31 December 9999 365 11PM"),
        ];
        for (seconds, want) in cases {
            assert_eq!(strftime("%a %d %B %Y %j %I%p", seconds), want);
        }
        assert_eq!(strftime("%F %T 100%% %q %é %- %", 86_399), "1970-01-01 23:59:59 100% %q %é %- %");
    }

    /// As Python's `date.strftime` has them.
    #[test]
    fn weeks_are_counted_in_three_ways() {
        for (seconds, want) in [
            (1_104_537_600, "00 00 2004 53"), // Saturday, 1 January 2005
            (1_104_624_000, "01 00 2004 53"), // Sunday
            (1_104_710_400, "01 01 2005 01"), // Monday
            (1_230_681_600, "52 52 2009 01"), // Wednesday, 31 December 2008
            (1_735_603_200, "52 53 2025 01"), // Tuesday, 31 December 2024
        ] {
            assert_eq!(strftime("%U %W %G %V", seconds), want, "{seconds}");
        }
    }
}
