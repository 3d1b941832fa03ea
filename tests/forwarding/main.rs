//! What a gateway must not get wrong about what it forwards: one list of cases
//! over real sockets, bytes in and bytes out, for the example's gateway, the
//! example `proxy` and the stack that the README shows.

mod answers;
mod connections;
mod gateways;
#[allow(dead_code)] // No process is told to stop here.
#[path = "../support/process.rs"]
mod process;
mod readme;
mod requests;
#[path = "../support/sockets.rs"]
mod sockets;
mod streams;

/// When a case is given up: a worker that is never asked would wait for ever.
const END: std::time::Duration = std::time::Duration::from_secs(60);

/// A test of each case for each gateway.
macro_rules! cases {
    ($($file:ident::$case:ident,)*) => {
        cases! { @of gateway Example $($file::$case,)* }
        cases! { @of proxy Proxy $($file::$case,)* }
        cases! { @of readmes_stack Readme $($file::$case,)* }
    };
    (@of $gateway:ident $kind:ident $($file:ident::$case:ident,)*) => {
        mod $gateway {
            $(
                #[tokio::test]
                async fn $case() {
                    let case = crate::$file::$case(crate::gateways::Kind::$kind);
                    tokio::time::timeout(crate::END, case).await.expect("the case ends");
                }
            )*
        }
    };
}

cases! {
    answers::a_body_that_breaks_off_is_cut,
    answers::a_few_informational_responses_are_passed_over,
    answers::a_length_beside_chunks_does_not_count,
    answers::a_switch_of_protocols_is_a_bad_gateway,
    answers::an_early_answer_reaches_the_client,
    answers::answers_without_a_body_have_none_and_keep_the_connection,
    answers::endless_informational_responses_are_a_bad_gateway,
    answers::the_head_that_the_client_gets_is_this_one,
    answers::trailers_reach_the_client,
    connections::a_loop_ends_at_the_first_turn,
    connections::a_worker_that_answers_nothing_is_passed_over,
    connections::when_nobody_can_be_reached_it_is_a_503,
    connections::what_was_closed_while_it_was_idle_is_noticed,
    connections::what_met_the_end_of_an_idle_connection_is_sent_again,
    requests::a_client_that_expects_a_go_ahead_gets_it,
    requests::a_request_that_is_framed_twice_is_framed_by_its_chunks,
    requests::a_slow_but_steady_upload_is_served,
    requests::cookies_of_http2_are_joined,
    requests::paths_do_not_lead_out_of_the_base,
    requests::requests_over_http2_are_the_same,
    requests::the_head_that_the_worker_gets_is_this_one,
    requests::the_method_the_path_and_the_query_arrive_as_they_were,
    requests::the_worker_is_told_through_whom,
    requests::the_worker_is_told_who_asks,
    requests::tunnels_and_echoes_are_not_allowed,
    streams::a_stream_is_not_held_up,
    streams::a_stream_that_breaks_off_ends_with_an_error_event_of_its_api,
    streams::a_stream_that_was_over_just_ends,
    streams::anything_else_is_cut,
    streams::the_worker_sees_that_the_client_has_gone,
}
