//! G-ROTATION-REPEAT: rotation that comes back blocks the account.

use crate::decision::KeyKind;
use crate::guard::command::Command;
use crate::guard::ladder::{Class, Memory};
use crate::guard::records::sets::keep_recent;
use crate::rule::Rule;

/// G-ROTATION-REPEAT: the third rotation in a day: HARD on the account (K4), always L4. An episode
/// counts once, until its metric has fallen below the value that it reached.
pub(in crate::guard) fn judge(command: &mut Command<'_>) {
    if !command.episode {
        return;
    }
    let policy = &command.flow.correlation.rotation_repeat;
    let kept = policy.threshold as usize;
    let episodes = &mut command.account.episodes;
    episodes.push(command.now);
    keep_recent(episodes, policy.window, kept, command.now);
    if episodes.len() >= kept {
        let (key, rule) = (KeyKind::Account, Rule::G_ROTATION_REPEAT);
        command.order(key, Class::Hard, policy.level, rule, Memory::Leave);
    }
}

#[cfg(test)]
mod tests {
    crate::scenarios::scenarios! {
        #[test]
        fn g_rotation_repeat_blocks_the_account_on_the_third_episode() proves "G-ROTATION-REPEAT" {"
            0 x3/1s check d=r# ip=1#   => allow
            3s     check d=r3 ip=13    => hard L2 G-ROTATION -G-ROTATION-REPEAT
            4s     check d=r4 ip=14    => hard L2 G-ROTATION -G-ROTATION-REPEAT
            40m x3/1s check d=s# ip=2# => allow
            40m3s  check d=s3 ip=23    => hard L2 G-ROTATION -G-ROTATION-REPEAT
            80m x3/1s check d=t# ip=3# => allow
            80m3s  check d=t3 ip=33    => hard L4 1800s G-ROTATION-REPEAT
            80m4s  check d=me+known ip=40 => hard L4 1799s
        "}

        #[test]
        fn g_rotation_repeat_a_watched_rotation_is_the_episode_it_grows_into() proves "G-ROTATION-REPEAT" {"
            0 x3/1s check d=r# ip=1#   => allow
            3s     check d=r3 ip=13    => hard G-ROTATION -G-WATCH
            20m x2/1s check d=s# ip=2# => allow
            20m3s  check d=s2 ip=22    => hard G-ROTATION +G-WATCH -G-ROTATION-REPEAT
            20m4s  check d=s3 ip=23    => hard G-ROTATION -G-ROTATION-REPEAT
            60m x3/1s check d=t# ip=3# => allow
            60m3s  check d=t3 ip=33    => hard L4 1800s G-ROTATION-REPEAT
        "}
    }
}
