//! The web pages as a browser gets them: built, or the page that says how they are.
//!
//! The program may have been built without Node, so what depends on built files is asked of those that the page names.

use crate::support::api::Api;
use crate::support::platform::on_both_databases;

on_both_databases! {
    async fn pages_need_no_token_and_load_from_this_service_only(platform: &TestPlatform) {
        let api = Api::of(platform);
        let first = api.get("", "/").await.is(200);
        for path in ["/", "/month", "/fleet", "/month?period=2026-06&by=tenant&lang=pt-BR", "/fleet?what=nobody&knows"] {
            let page = api.get("", path).await.is(200);
            assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"), "{path}");
            assert_eq!(page.header("cache-control"), Some("no-cache"), "{path}");
            assert_eq!(page.text, first.text, "{path}: what is shown, the script reads from the address");
            let policy = page.header("content-security-policy").unwrap().to_owned();
            assert!(policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self';"), "{policy}");
            assert!(!policy.contains("unsafe") && !policy.contains("http"), "{policy}");
        }
        let is_built = first.text.contains("<script");
        assert!(is_built || first.text.contains("make web"), "it says how it is built");
        assert!(!first.text.contains("//"), "no other host is named: {}", first.text);
    }

    async fn files_of_a_page_are_kept_and_packed(platform: &TestPlatform) {
        let api = Api::of(platform);
        let page = api.get("", "/").await.is(200);
        let named = page.text.split('"').filter(|part| part.starts_with("/assets/"));
        for path in named {
            let plain = api.get("", path).await.is(200);
            assert_eq!(plain.header("cache-control"), Some("public, max-age=31536000, immutable"), "{path}");
            assert_eq!(plain.header("content-encoding"), None, "{path}");
            let packed = api.ask("GET", path).header("Accept-Encoding", "gzip").send().await.is(200);
            assert_eq!(packed.header("vary"), Some("Accept-Encoding"), "{path}");
            if !path.ends_with(".svg") {
                assert_eq!(packed.header("content-encoding"), Some("gzip"), "{path}");
            }
        }
    }

    async fn what_is_no_page_is_a_problem(platform: &TestPlatform) {
        let api = Api::of(platform);
        for path in ["/api", "/api/", "/api/v1/none", "/none", "/assets/none.js", "/assets/..%2Findex.html", "/assets/index.html"] {
            let answer = api.get("", path).await.is(404);
            assert_eq!(answer.header("content-type"), Some("application/problem+json"), "{path}");
        }
    }
}
