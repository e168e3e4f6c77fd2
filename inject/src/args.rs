//! Command-line options for the shim in pods. The webhook and the command line share them.

use clap::{Arg, Args, Command, FromArgMatches, ValueEnum};
use contract::names::{PILOT_AGENT, SHIM_IMAGE, SHIM_UID};

use crate::tenancy::desired::is_dns_subdomain;
use crate::{Delivery, Hold, ParseQuantityError, PullPolicy, Settings, ShimResources, ShimUser};

/// An option of the webhook that is not for the shim, and that settings depend on.
const NATIVE_SIDECARS: &str = "native-sidecars";

/// Options for the shim in pods.
#[derive(Debug, Args)]
#[command(next_help_heading = "The shim in pods")]
pub struct ShimArgs {
    /// The shim's image
    #[arg(long, value_name = "IMAGE", default_value_t = default_image())]
    shim_image: String,
    /// When nodes pull that image; by a policy, Always where the server runs its plug-in `AlwaysPullImages`
    #[arg(long, value_name = "POLICY", default_value = "IfNotPresent", value_parser = pull_policy)]
    shim_pull_policy: PullPolicy,
    /// A Secret with which nodes pull that image, in each namespace that opts in; several by commas
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = secret_name)]
    shim_pull_secret: Vec<String>,
    /// Which pods start after their proxy, by Istio's `holdApplicationUntilProxyStarts`
    #[arg(long, value_enum, default_value_t = Hold::All)]
    hold: Hold,
    /// How the shim gets into containers that are not its own: an init container copies it, or its image is a volume
    /// (Kubernetes 1.35 with containerd 2.1 or CRI-O, and later, on every node)
    #[arg(long, value_enum, default_value_t = Delivery::Copy)]
    delivery: Delivery,
    /// How pods are ended that do not ask for a mode themselves: at once where containers may share a PID namespace, or
    /// always by the kubelet's report, about a second later
    #[arg(long, value_enum, default_value_t = DefaultMode::Auto)]
    default_mode: DefaultMode,
    /// Requests of the shim's containers, such as a `LimitRange` demands; `none` for no requests
    #[arg(long, value_name = "NAME=QUANTITY", value_delimiter = ',', default_values = ["cpu=1m", "memory=4Mi"], value_parser = quantity)]
    shim_requests: Vec<Quantity>,
    /// Limits of the shim's containers, in Guaranteed pods also their requests; `none` for no limit
    #[arg(long, value_name = "NAME=QUANTITY", value_delimiter = ',', default_values = ["memory=16Mi"], value_parser = quantity)]
    shim_limits: Vec<Quantity>,
    /// The user that the shim's own containers run as: an ID, `proxy` for that of istio-proxy, or `none` to leave it to the
    /// namespace (`OpenShift` rejects IDs outside the namespace's range)
    #[arg(long, value_name = "USER", default_value_t = ShimUser::Uid(SHIM_UID), value_parser = user)]
    shim_user: ShimUser,
    /// What istio-proxy runs where its container has no command
    #[arg(long, value_name = "PATH", default_value = PILOT_AGENT)]
    proxy_command: String,
}

/// Returns the settings of an installation without options of its own.
#[must_use]
pub fn default_settings() -> Settings {
    Settings::new(&default_image())
}

/// Returns true if the settings have the default image, which no registry has.
#[must_use]
pub fn has_default_image(settings: &Settings) -> bool {
    settings.shim_image == default_image()
}

fn default_image() -> String {
    format!("{SHIM_IMAGE}:{}", env!("CARGO_PKG_VERSION"))
}

/// Returns the settings of a webhook that runs with these arguments. Options that are not for the shim are skipped.
pub fn settings_of(words: &[String]) -> Result<Settings, clap::Error> {
    let native_sidecars = Arg::new(NATIVE_SIDECARS).long(NATIVE_SIDECARS);
    let command = ShimArgs::augment_args(Command::new("istio-aux-webhook")).arg(native_sidecars);
    let names: Vec<String> =
        command.get_arguments().filter_map(Arg::get_long).map(|name| format!("--{name}")).collect();
    let mut ours = vec![String::new()];
    let mut next = words.iter();
    while let Some(word) = next.next() {
        let (name, value) = word.split_once('=').map_or((word.as_str(), None), |(name, value)| (name, Some(value)));
        if names.iter().any(|other| other == name) {
            ours.push(word.clone());
            ours.extend(if value.is_none() { next.next().cloned() } else { None });
        }
    }
    let matches = command.try_get_matches_from(ours)?;
    let native_sidecars = matches.get_one::<String>(NATIVE_SIDECARS).is_none_or(|value| value != "disabled");
    Ok(ShimArgs::from_arg_matches(&matches)?.settings(native_sidecars))
}

/// Returns clap's message for wrong arguments in one line.
#[must_use]
pub fn one_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let first = text.split("\n\n").next().unwrap_or_default();
    let words: Vec<&str> = first.strip_prefix("error: ").unwrap_or(first).split_whitespace().collect();
    format!("{}; see --help", words.join(" "))
}

/// The mode of pods that do not ask for one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum DefaultMode {
    Auto,
    Status,
}

impl ShimArgs {
    /// Returns the settings, for a server with or without native sidecars.
    #[must_use]
    pub fn settings(self, native_sidecars: bool) -> Settings {
        Settings {
            shim_image: self.shim_image,
            pull_policy: self.shim_pull_policy,
            pull_secrets: self.shim_pull_secret,
            hold: self.hold,
            delivery: self.delivery,
            native_sidecars,
            prefers_status: self.default_mode == DefaultMode::Status,
            proxy_command: self.proxy_command,
            user: self.shim_user,
            resources: ShimResources {
                requests: self.shim_requests.into_iter().flatten().collect(),
                limits: self.shim_limits.into_iter().flatten().collect(),
            },
        }
    }
}

/// A resource and its quantity; `None` where the word `none` was given.
type Quantity = Option<(String, String)>;

fn quantity(text: &str) -> Result<Quantity, ParseQuantityError> {
    if text == "none" { Ok(None) } else { ShimResources::parse_quantity(text).map(Some) }
}

fn pull_policy(text: &str) -> Result<PullPolicy, &'static str> {
    let all = [PullPolicy::IfNotPresent, PullPolicy::Always, PullPolicy::Never];
    all.into_iter().find(|policy| policy.as_str() == text).ok_or("takes IfNotPresent, Always or Never")
}

fn secret_name(text: &str) -> Result<String, &'static str> {
    if is_dns_subdomain(text) { Ok(text.to_owned()) } else { Err("takes the name of a Secret") }
}

/// Is the largest user ID that the API server accepts (`IsValidUserID` in Kubernetes' validation).
const UID_MAX: u32 = i32::MAX.unsigned_abs();

fn user(text: &str) -> Result<ShimUser, &'static str> {
    match text {
        "proxy" => Ok(ShimUser::Proxy),
        "none" => Ok(ShimUser::Unset),
        _ => {
            let uid = text.parse().ok().filter(|uid| (1..=UID_MAX).contains(uid));
            uid.map(ShimUser::Uid).ok_or("takes a user ID from 1 to 2147483647, proxy or none")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_option_has_its_setting() {
        assert_eq!(settings_of(&[]).unwrap(), default_settings());
        let words = "--shim-image=shim:2 --shim-pull-policy=Always --shim-pull-secret=a,b --hold=never --delivery=image-volume \
            --default-mode=status --shim-requests=cpu=2m --shim-limits=none --shim-user=proxy --proxy-command=/agent \
            --native-sidecars=disabled --listen=127.0.0.1:1";
        let words: Vec<_> = words.split_whitespace().map(str::to_owned).collect();
        let expected = Settings {
            shim_image: "shim:2".to_owned(),
            pull_policy: PullPolicy::Always,
            pull_secrets: vec!["a".to_owned(), "b".to_owned()],
            hold: Hold::Never,
            delivery: Delivery::ImageVolume,
            native_sidecars: false,
            prefers_status: true,
            proxy_command: "/agent".to_owned(),
            user: ShimUser::Proxy,
            resources: ShimResources { requests: vec![("cpu".to_owned(), "2m".to_owned())], limits: vec![] },
        };
        assert_eq!(settings_of(&words).unwrap(), expected);
        for (user, expected) in [("none", ShimUser::Unset), ("7", ShimUser::Uid(7))] {
            assert_eq!(settings_of(&[format!("--shim-user={user}")]).unwrap().user, expected);
        }
        for user in ["0", "2147483648", "root"] {
            assert!(settings_of(&[format!("--shim-user={user}")]).is_err(), "{user}");
        }
    }

    #[test]
    fn pull_secret_has_a_secrets_name() {
        let names = |words: &str| settings_of(&[format!("--shim-pull-secret={words}")]).map(|it| it.pull_secrets).ok();
        assert_eq!(names("a,registry-1.b"), Some(vec!["a".to_owned(), "registry-1.b".to_owned()]));
        for words in ["", "a,", "A", "a_b", "a/b", "-a", "a-", "a..b"] {
            assert_eq!(names(words), None, "{words}");
        }
    }
}
