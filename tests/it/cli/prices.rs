//! Price files: what is wrong with one is named, and nothing of it is published.

use super::program::Fatia;

const GOOD: &str = "name = \"a\"\ncurrency = \"USD\"\neffective_from = \"2026-09-01T00:00:00Z\"\n\
                    [cost]\nA10 = \"1.25\"\n";
const INVENTORY: &str = "node,gpu_uuid,gpu_model,in_service_from,in_service_to\n\
                         n1,GPU-a,A10,2026-09-01T00:00:00Z,2026-09-03T00:00:00Z\n";
const NOBODY: &str = "workload,node,gpu_uuid,mode,start,end\n";

#[test]
fn a_bad_price_file_is_refused_and_its_field_is_named() {
    let fatia = Fatia::new();
    fatia.import_all(INVENTORY, NOBODY, &[]);
    let before = fatia.report("2026-09", "day", "json");
    let check = |from: &str, to: &str, parts: &[&str]| {
        assert!(GOOD.contains(from), "{from}");
        let ran = fatia.price(&GOOD.replacen(from, to, 1)).ended(1).told(&["fatia: "]).told(parts);
        assert_eq!(ran.out, "");
        assert_eq!(fatia.report("2026-09", "day", "json"), before, "{to}");
    };
    check("\"1.25\"", "1.25", &["A10 = 1.25", "expected a string"]);
    check("\"1.25\"", "\"-1\"", &["cost.\"A10\" `-1` is negative"]);
    check("\"1.25\"", "\"1,25\"", &["cost.\"A10\" `1,25` is not a plain decimal number"]);
    check("\"1.25\"", "\"\"", &["cost.\"A10\" `` is not a plain decimal number"]);
    check("\"1.25\"", "\"0.000000001\"", &["cost.\"A10\" `0.000000001` has more than 8 decimals"]);
    check("\"1.25\"", "\"99999999999999\"", &["cost.\"A10\" `99999999999999` is too large"]);
    check("A10", "\"\"", &["cost.\"\" is empty"]);
    check("[cost]", "[costs]", &["unknown field `costs`", "`cost`"]);
    check("[cost]", "colour = \"red\"\n[cost]", &["unknown field `colour`"]);
    check("[cost]\nA10 = \"1.25\"\n", "", &["holds no price"]);
    check("A10", "A10 = \"1\"\nA10", &["duplicate key `A10`"]);
    check("name = \"a\"", "", &["missing field `name`"]);
    check("\"a\"", "\" \"", &["name is empty"]);
    check("currency = \"USD\"", "", &["missing field `currency`"]);
    check("USD", "usd", &["currency `usd`"]);
    check("USD", "EUR", &["prices are in EUR", "book currency is USD"]);
    check("2026-09-01T00:00:00Z", "2026-09-01", &["effective_from `2026-09-01` is not an RFC 3339 instant"]);
    check("T00:00:00Z\"", "T00:30:00Z\"", &["effective_from 2026-09-01T00:30:00Z is not on an edge"]);
    let to = |instant: &str| format!("effective_to = \"{instant}\"\n[cost]");
    check("[cost]", &to("2026-09-02T00:30:00Z"), &["effective_to 2026-09-02T00:30:00Z is not on an edge"]);
    check("[cost]", &to("2026-08-01T00:00:00Z"), &["effective_to ends at 2026-08-01T00:00:00Z, before"]);
    check("[cost]", &to("2026-09-01T00:00:00Z"), &["effective for no hour"]);
    check("[cost]", "[cost", &["TOML parse error at line 4"]);

    fatia
        .run(&["price", "load", "nowhere.toml"])
        .ended(1)
        .told(&["nowhere.toml: cannot be read: No such file"]);
    fatia.write("prices.toml", b"\xff\xfe");
    fatia.run(&["price", "load", "prices.toml"]).ended(1).told(&["prices.toml: ", "UTF-8"]);
}

#[test]
fn the_same_file_changes_nothing_and_another_under_its_name_replaces_it() {
    let fatia = Fatia::new();
    fatia.import_all(INVENTORY, NOBODY, &[]);
    let costs = || {
        let report = fatia.json("2026-09", "day");
        assert_eq!(report.in_service(), 48_000_000);
        report.groups().iter().map(|line| line.cost().map(str::to_owned)).collect::<Vec<_>>()
    };
    let all = |each: &str| vec![Some(each.to_owned()), Some(each.to_owned())];
    assert_eq!(costs(), [None, None]);
    fatia.price(GOOD).good().told(&["`a` revision 1, 1 prices", "published"]);
    assert_eq!(costs(), all("30"));
    let turned = format!("# the same in other words\n{}", GOOD.replace("\"1.25\"", "'1.250'"));
    fatia.price(&turned).good().told(&["`a` revision 1", "nothing changed"]);
    fatia.price(&GOOD.replace("1.25", "2")).good().told(&["`a` revision 2", "published"]);
    assert_eq!(costs(), all("48"));
    // Another name may follow it, and not lie over it.
    let other = GOOD.replace("\"a\"", "\"b\"").replace("1.25", "3").replace("09-01", "09-02");
    fatia.price(&other).ended(1).told(&["`b` would hold at the same time as `a`", "2026-09-01T00:00:00Z"]);
    assert_eq!(costs(), all("48"));
    fatia.price(&GOOD.replace("[cost]", "effective_to = \"2026-09-02T00:00:00Z\"\n[cost]")).good();
    assert_eq!(costs(), [Some("30".to_owned()), None]);
    fatia.price(&other).good();
    assert_eq!(costs(), [Some("30".to_owned()), Some("72".to_owned())]);
    // A price of zero is a price.
    fatia.price(&other.replace("\"3\"", "\"0\"")).good();
    assert_eq!(costs(), [Some("30".to_owned()), Some("0".to_owned())]);
}
