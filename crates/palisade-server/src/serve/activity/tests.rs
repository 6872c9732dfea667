use super::*;

fn any() -> Patience {
    Patience::new(Duration::from_secs(1), Duration::from_secs(1))
}

#[test]
fn a_connection_is_asked_to_close_at_its_age_however_busy_it_is() {
    let patience = any().at_most(Some(Duration::from_secs(10)));
    let live = Live::default();
    let busy = live.add(&patience);
    busy.multiplex();
    let _under_way = UnderWay::begin(&busy);
    let asked = (1..1000).find(|_| busy.tick(&patience) == ConnectionVerdict::Close);
    // A tick is a quarter of a second, and the random start takes off up to a tenth of the age.
    assert!(
        asked.is_some_and(|ticks| (37..=41).contains(&ticks)),
        "{asked:?}"
    );
    assert_eq!(busy.tick(&patience), ConnectionVerdict::Close);
    let never = live.add(&any());
    let _under_way = UnderWay::begin(&never);
    assert!((0..10_000).all(|_| never.tick(&any()) == ConnectionVerdict::Stay));
}

#[test]
fn what_has_no_end_keeps_a_connection_only_until_its_age_and_a_little_longer() {
    let patience = any().at_most(Some(Duration::from_secs(10)));
    let live = Live::default();
    let watched = live.add(&patience);
    watched.multiplex();
    let mut stream = UnderWay::begin(&watched);
    stream.lasts();
    let call = UnderWay::begin(&watched);
    assert!((0..1000).all(|_| watched.tick(&patience) != ConnectionVerdict::End));
    drop(call);
    assert_eq!(watched.tick(&patience), ConnectionVerdict::End);
    let young = live.add(&patience);
    young.multiplex();
    let mut stream = UnderWay::begin(&young);
    stream.lasts();
    let end = (1..1000).find(|_| young.tick(&patience) == ConnectionVerdict::End);
    // The age, less a tenth at most, plus the time for headers.
    assert!(
        end.is_some_and(|ticks| (41..=45).contains(&ticks)),
        "{end:?}"
    );
}

fn ticks_until_expired(activity: &Activity, patience: &Patience) -> u32 {
    (1..1000)
        .find(|_| activity.tick(patience) == ConnectionVerdict::End)
        .unwrap_or(u32::MAX)
}

#[test]
fn headers_have_less_time_than_idling_and_answers_are_not_cut_off() {
    let patience = Patience::new(Duration::from_secs(1), Duration::from_secs(10));
    let activity = Arc::<Activity>::default();
    drop(UnderWay::begin(&activity));
    assert_eq!(ticks_until_expired(&activity, &patience), 41);
    drop(UnderWay::begin(&activity));
    activity.received();
    assert_eq!(ticks_until_expired(&activity, &patience), 5);
    let _under_way = UnderWay::begin(&activity);
    assert_eq!(ticks_until_expired(&activity, &patience), u32::MAX);
}

#[test]
fn a_client_that_takes_nothing_is_given_up_and_a_quiet_stream_is_not() {
    let patience = Patience::new(Duration::from_secs(1), Duration::from_secs(2));
    let activity = Arc::<Activity>::default();
    let _under_way = UnderWay::begin(&activity);
    assert_eq!(ticks_until_expired(&activity, &patience), u32::MAX);
    activity.wrote(true);
    assert_eq!(ticks_until_expired(&activity, &patience), 9);
    activity.wrote(false);
    assert_eq!(ticks_until_expired(&activity, &patience), u32::MAX);
}

#[test]
fn a_connection_is_told_when_its_time_is_up_and_when_all_are_to_close() {
    let patience = Patience::new(Duration::from_secs(1), Duration::from_secs(1));
    let live = Live::default();
    let (idle, busy) = (live.add(&any()), live.add(&any()));
    let cx = Context::from_waker(Waker::noop());
    let _under_way = UnderWay::begin(&busy);
    live.tick(&patience);
    assert_eq!(idle.verdict(&cx), ConnectionVerdict::Stay);
    for _ in 0..10 {
        live.tick(&patience);
    }
    assert_eq!(idle.verdict(&cx), ConnectionVerdict::End);
    assert_eq!(busy.verdict(&cx), ConnectionVerdict::Stay);
    live.close();
    assert_eq!(idle.verdict(&cx), ConnectionVerdict::End);
    assert_eq!(busy.verdict(&cx), ConnectionVerdict::Close);
}

#[test]
fn a_verdict_wakes_the_connection() {
    struct WakeFlag(AtomicBool);
    impl std::task::Wake for WakeFlag {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let woken = Arc::new(WakeFlag(AtomicBool::new(false)));
    let waker = Waker::from(Arc::clone(&woken));
    let live = Live::default();
    let one = live.add(&any());
    assert_eq!(
        one.verdict(&Context::from_waker(&waker)),
        ConnectionVerdict::Stay
    );
    assert!(!woken.0.load(Ordering::Relaxed));
    live.close();
    assert!(woken.0.load(Ordering::Relaxed));
}

#[test]
fn connections_that_have_ended_take_no_room() {
    let live = Live::default();
    let kept = live.add(&any());
    for _ in 0..100_000 {
        drop(live.add(&any()));
    }
    assert!(live.0.lock().capacity() <= 4 * LIVE_ROOM_MIN);
    live.tick(&Patience::new(
        Duration::from_secs(1),
        Duration::from_secs(1),
    ));
    assert_eq!(live.0.lock().len(), 1);
    drop(kept);
}

#[test]
fn s5_a_client_that_says_nothing_has_the_time_for_a_head() {
    let patience = Patience::new(Duration::from_secs(1), Duration::from_secs(10));
    assert_eq!(ticks_until_expired(&Activity::default(), &patience), 5);
    let agreed = Activity::default();
    agreed.multiplex();
    assert_eq!(ticks_until_expired(&agreed, &patience), 5, "HTTP/2 in TLS");
    agreed.begin();
    agreed.received();
    assert_eq!(ticks_until_expired(&agreed, &patience), 45);
}

#[test]
fn s6_only_what_is_delivered_keeps_an_answer_that_the_client_does_not_take() {
    let patience = Patience::new(Duration::from_secs(1), Duration::from_secs(2));
    let activity = multiplexed();
    let mut answer = UnderWay::begin(&activity);
    answer.waits_for_us(false);
    let ends = |answer: &mut UnderWay, is_taken: bool| {
        (0..100).any(|_| {
            // One of our own pings.
            activity.wrote(false);
            if is_taken {
                answer.waits_for_us(false);
            }
            activity.tick(&patience) == ConnectionVerdict::End
        })
    };
    assert!(!ends(&mut answer, true));
    assert!(ends(&mut answer, false));
}

#[test]
fn a_connection_of_use_makes_no_room() {
    let patience = Patience::new(Duration::from_secs(1), Duration::from_secs(2));
    let activity = multiplexed();
    activity.tick(&patience);
    assert_eq!(activity.idle_ticks(&patience), Some(1));
    let mut answer = UnderWay::begin(&activity);
    for _ in 0..6 {
        activity.tick(&patience);
    }
    assert_eq!(activity.idle_ticks(&patience), None, "it waits for us");
    answer.waits_for_us(false);
    assert_eq!(activity.idle_ticks(&patience), None, "just handed over");
    for _ in 0..6 {
        activity.tick(&patience);
    }
    assert_eq!(activity.idle_ticks(&patience), Some(6), "not taken");
    drop(answer);
    activity.hand_over();
    assert_eq!(activity.idle_ticks(&patience), None, "a tunnel");
}

#[test]
fn trickling_bytes_do_not_buy_time() {
    let patience = Patience::new(Duration::from_secs(1), Duration::from_secs(10));
    let activity = Activity::default();
    activity.received();
    let expired = (0..10).any(|_| {
        activity.received();
        activity.tick(&patience) == ConnectionVerdict::End
    });
    assert!(expired);
}

fn multiplexed() -> Arc<Activity> {
    let activity = Arc::<Activity>::default();
    activity.multiplex();
    activity.received();
    activity
}

#[test]
fn an_idle_multiplexed_connection_is_asked_to_close_before_it_ends() {
    let patience = Patience::new(Duration::from_secs(1), Duration::from_secs(2));
    let activity = multiplexed();
    let verdicts: Vec<ConnectionVerdict> = (0..14)
        .map(|_| {
            activity.received();
            activity.tick(&patience)
        })
        .collect();
    assert_eq!(verdicts[7], ConnectionVerdict::Stay);
    assert!(
        verdicts[8..12]
            .iter()
            .all(|v| *v == ConnectionVerdict::Close)
    );
    assert_eq!(verdicts[12], ConnectionVerdict::End);
}

#[test]
fn an_answer_that_no_window_is_granted_for_is_given_up_and_a_slow_one_is_not() {
    let patience = Patience::new(Duration::from_secs(1), Duration::from_secs(2));
    let activity = multiplexed();
    let mut slow = UnderWay::begin(&activity);
    assert_eq!(ticks_until_expired(&activity, &patience), u32::MAX);
    slow.waits_for_us(false);
    activity.wrote(false);
    assert_eq!(ticks_until_expired(&activity, &patience), 9);
    slow.waits_for_us(true);
    assert_eq!(ticks_until_expired(&activity, &patience), u32::MAX);
}

#[test]
fn requests_at_once_are_idle_only_when_the_last_has_ended() {
    let activity = multiplexed();
    let (one, other) = (UnderWay::begin(&activity), UnderWay::begin(&activity));
    drop(one);
    assert_eq!(activity.phase.load(Ordering::Relaxed), ANSWERING);
    drop(other);
    assert_eq!(activity.phase.load(Ordering::Relaxed), IDLE);
    assert_eq!(activity.waiting.load(Ordering::Relaxed), 0);
}
