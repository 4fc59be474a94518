//! `fatia token`.

use comfy_table::{ContentArrangement, Table, presets};

use super::args::{TokenCommand, TokenCreateArguments};
use super::{Ending, Target, mint, show, tell};
use crate::domain::access::{Grants, Role};
use crate::services::access::{self, NewToken, TokenView};
use crate::services::error::ServiceError;

/// Tokens that are read at once.
const PAGE: i64 = 1_000;

pub(super) async fn run(
    target: &Target<'_>,
    command: &TokenCommand,
    random: fn(&mut [u8]) -> Result<(), String>,
) -> Result<Ending, ServiceError> {
    match command {
        TokenCommand::Create(arguments) => create(target, arguments, random).await,
        TokenCommand::List => {
            show(&as_text(&list(target).await?))?;
            Ok(Ending::Done)
        }
        TokenCommand::Revoke(arguments) => {
            let revoked = match target {
                Target::Here(platform, _) => access::revoke_token(platform, &arguments.id).await?,
                Target::Server(server) => server.revoke_token(&arguments.id).await?,
            };
            let since = revoked.revoked.unwrap_or_default();
            tell(&format!("token {} `{}` is revoked since {since}", revoked.id, revoked.name));
            Ok(Ending::Done)
        }
    }
}

async fn create(
    target: &Target<'_>,
    arguments: &TokenCreateArguments,
    random: fn(&mut [u8]) -> Result<(), String>,
) -> Result<Ending, ServiceError> {
    let new = NewToken {
        name: arguments.name.clone(),
        role: arguments.role,
        tenant: arguments.tenant.clone(),
        only: arguments.scope.iter().copied().collect(),
        expires: arguments.expires,
    };
    let (made, secret) = match target {
        Target::Here(platform, _) => {
            let minted = mint(random)?;
            (access::make_token(platform, &Grants::of(Role::Admin), new, &minted).await?, Some(minted.text))
        }
        Target::Server(server) => {
            let made = server.make_token(&new).await?;
            (made.token, made.secret)
        }
    };
    tell(&format!("token {} `{}`, role {}: its text is shown this once", made.id, made.name, made.role));
    show(&format!("{}\n", secret.unwrap_or_default()))?;
    Ok(Ending::Done)
}

async fn list(target: &Target<'_>) -> Result<Vec<TokenView>, ServiceError> {
    let platform = match target {
        Target::Here(platform, _) => platform,
        Target::Server(server) => return server.tokens().await,
    };
    let mut all: Vec<TokenView> = Vec::new();
    loop {
        let after = all.last().map(|last| last.id.clone()).unwrap_or_default();
        let page = access::token_list(platform, after, PAGE).await?;
        if page.is_empty() {
            return Ok(all);
        }
        all.extend(page);
    }
}

fn as_text(tokens: &[TokenView]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled).set_header([
        "id",
        "name",
        "role",
        "tenant",
        "scopes",
        "created",
        "expires",
        "revoked",
        "last used",
    ]);
    let shown = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    for token in tokens {
        table.add_row([
            token.id.clone(),
            token.name.clone(),
            token.role.clone(),
            shown(&token.tenant),
            token.scopes.as_ref().map_or_else(|| "-".to_owned(), |scopes| scopes.join(",")),
            token.created.clone(),
            shown(&token.expires),
            shown(&token.revoked),
            shown(&token.last_used),
        ]);
    }
    format!("{}\n", table.trim_fmt())
}
