//! An installation is a demo from its beginning, and for good.

use fatia::services::error::ServiceError;

use crate::support::platform::on_both_databases;

on_both_databases! {
    async fn a_new_installation_becomes_a_demo_and_stays_one(platform: &TestPlatform) {
        assert!(!platform.installation.is_demo);
        let demo = platform.platform.clone().as_demo().await.expect("nothing is in it");
        assert!(demo.installation.is_demo);
        platform.import("n1 g1 A10 06-09T00:00 06-10T00:00", "").await;
        let later = platform.replica(platform.clock.clone()).await;
        assert!(later.installation.is_demo);
        let again = later.as_demo().await.expect("it is one");
        assert!(again.installation.is_demo);
        let said: Vec<String> = fatia::services::doctor::examine(&again).await.expect("it can be looked at")
            .into_iter().map(|check| check.subject).collect();
        assert!(said.contains(&"demo".to_owned()), "{said:?}");
    }

    async fn what_somebody_brought_in_becomes_no_demo(platform: &TestPlatform) {
        let tenant = fatia::domain::ids::Name::parse("acme").expect("a name");
        fatia::services::tenancy::make_tenant(platform, tenant).await.expect("a new tenant");
        let refused = platform.platform.clone().as_demo().await.expect_err("a tenant is somebody's");
        assert!(matches!(refused, ServiceError::NotADemo { .. }), "{refused}");
        assert!(!platform.replica(platform.clock.clone()).await.installation.is_demo);
    }

    async fn nor_do_imported_hours(platform: &TestPlatform) {
        platform.import("n1 g1 A10 06-09T00:00 06-10T00:00", "w1 acme n1 g1 dedicated 06-09T00:00 06-09T01:00").await;
        let refused = platform.platform.clone().as_demo().await.expect_err("they are somebody's");
        assert!(matches!(refused, ServiceError::NotADemo { .. }), "{refused}");
    }
}
