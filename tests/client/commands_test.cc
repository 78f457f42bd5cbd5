// The client's commands against a completions service over a fake generator.

#include "client/commands.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "frontend/admin_service.h"
#include "tests/frontend/completions_harness.h"

namespace baton {
namespace {

using nlohmann::json;

class CommandsTest : public testing::Test {
 protected:
  CommandsTest() : client_(*CompletionsClient::Create(harness_.address, {})) {
    harness_.AnswerWith("an answer");
  }

  Console MakeConsole(const std::string& input = "") {
    in_.str(input);
    return {.in = in_, .out = out_, .err = err_};
  }

  // What the generator got, as text.
  std::string PromptOf(std::size_t number) {
    std::string text;
    for (const std::uint32_t id : harness_.generator.Await(number)->job.sequence.prompt()) {
      text += (*CompletionsHarness::SharedModel()).tokenizer().TokenBytes(TokenId(id));
    }
    return text;
  }

  CompletionsHarness harness_;
  const std::unique_ptr<CompletionsClient> client_;
  std::istringstream in_;
  std::ostringstream out_;
  std::ostringstream err_;
};

TEST_F(CommandsTest, CompletePrintsTheTextAndALineAboutIt) {
  Console console = MakeConsole();
  ASSERT_TRUE(RunComplete(*client_, {.prompt = {.argument = "hello"}}, console).ok());

  const std::string out = out_.str();
  EXPECT_EQ(out.substr(0, 11), "an answer\n[");
  EXPECT_NE(out.find("colocated"), std::string::npos) << out;
  EXPECT_NE(out.find("9 new tokens"), std::string::npos) << out;
  EXPECT_EQ(out.find('\033'), std::string::npos) << "dim on terminals only";
}

TEST_F(CommandsTest, StreamedOrNotTheTextIsTheSame) {
  Console console = MakeConsole();
  ASSERT_TRUE(RunComplete(*client_, {.prompt = {.argument = "x"}, .stream = true}, console).ok());

  EXPECT_EQ(out_.str().substr(0, 11), "an answer\n[");
}

TEST_F(CommandsTest, JsonIsExactlyOneObject) {
  Console console = MakeConsole();
  ASSERT_TRUE(
      RunComplete(*client_, {.prompt = {.argument = "x"}, .stream = true, .json = true}, console)
          .ok());
  const json response = json::parse(out_.str());

  EXPECT_EQ(response["choices"][0]["text"], "an answer");
  EXPECT_EQ(response["choices"][0]["token_ids"].size(), 9u);
  EXPECT_EQ(response["choices"][0]["finish_reason"], "FINISH_REASON_LENGTH");
  EXPECT_GT(response["timeline"]["total"].get<double>(), 0.0);
}

TEST_F(CommandsTest, InputIsTakenByteForByte) {
  const std::string bytes("\xEF\xBB\xBF one\0two\r\n\n", 14);
  Console console = MakeConsole(bytes);
  ASSERT_TRUE(RunComplete(*client_, {.prompt = {.argument = "-"}}, console).ok());
  const TemporaryFolder folder;
  const std::string path = (folder.path() / "prompt").string();
  std::ofstream(path, std::ios::binary) << bytes;
  ASSERT_TRUE(RunComplete(*client_, {.prompt = {.file = path}}, console).ok());

  EXPECT_EQ(PromptOf(0), bytes);
  EXPECT_EQ(PromptOf(1), bytes);
}

TEST_F(CommandsTest, FlagsBecomeFields) {
  CompleteFlags flags{.prompt = {.argument = "x"}};
  flags.generation = {.max_tokens = 5,
                      .min_tokens = 2,
                      .temperature = 0.5,
                      .top_p = 0.25,
                      .top_k = 7,
                      .seed = ~0ull,
                      .stop = {"answ"},
                      .path = "disaggregated",
                      .cache_salt = "pepper",
                      .request_id = "me",
                      .session = "chat-7",
                      .zone = "eu",
                      .priority = -2,
                      .tenant = "team-a"};
  Console console = MakeConsole();
  ASSERT_TRUE(RunComplete(*client_, flags, console).ok());
  const GenerationJob& job = harness_.generator.Await(0)->job;

  EXPECT_EQ(job.request_id, "me");
  EXPECT_EQ(job.path, v1::PATH_DISAGGREGATED);
  EXPECT_EQ(job.sequence.max_tokens(), 5u);
  EXPECT_EQ(job.sequence.min_tokens(), 2u);
  EXPECT_EQ(job.sequence.sampling().temperature(), 0.5f);
  EXPECT_EQ(job.sequence.sampling().top_p(), 0.25f);
  EXPECT_EQ(job.sequence.sampling().top_k(), 7u);
  EXPECT_EQ(job.sequence.sampling().seed(), ~0ull);
  EXPECT_EQ(job.sequence.cache_salt(), "pepper");
  EXPECT_EQ(job.session, "chat-7");
  EXPECT_EQ(job.sequence.zone(), "eu");
  EXPECT_EQ(job.priority, -2);
  EXPECT_EQ(job.tenant, "team-a");
  EXPECT_EQ(job.choices, 1u);
  EXPECT_FALSE(job.sequence.has_logprobs());
  EXPECT_EQ(out_.str().substr(0, 5), "an \n[") << "the stop string ends the text";
}

TEST(DescribeError, SaysWhenAnotherTryMakesSense) {
  const absl::Status full = absl::ResourceExhaustedError("the queue is full");
  EXPECT_EQ(DescribeError(full), "RESOURCE_EXHAUSTED: the queue is full");
  EXPECT_EQ(DescribeError(WithRetryAfter(full, std::chrono::milliseconds(1500))),
            "RESOURCE_EXHAUSTED: the queue is full; try again in 1.5 s");
}

// Two choices whose tokens come by turns; the second one ends first.
void AnswerWithTwo(FakeGenerator::Fake& fake) {
  const bool wanted = fake.job.sequence.has_logprobs();
  for (const char letter : {'a', 'b', 'c'}) {
    for (const std::uint32_t choice : {1u, 0u}) {
      const std::uint32_t id = 3 + static_cast<std::uint32_t>(letter) - 32 * choice;  // 1: capitals
      v1::TokenLogprob logprob;
      logprob.set_id(id);
      logprob.set_logprob(-0.25f);
      v1::TokenLogprob::Alternative& alternative = *logprob.add_alternatives();
      alternative.set_id(300);
      alternative.set_logprob(-12.5f);
      fake.Token({.id = TokenId(id),
                  .choice = choice,
                  .logprob = wanted ? std::optional(logprob) : std::nullopt});
    }
  }
  fake.EndChoice(1, v1::FINISH_REASON_STOP);
  fake.Finish(v1::FINISH_REASON_LENGTH);
}

TEST_F(CommandsTest, SeveralChoicesAreShownOneAfterTheOther) {
  harness_.generator.on_start = AnswerWithTwo;
  for (const bool stream : {false, true}) {
    out_.str("");
    Console console = MakeConsole();
    const CompleteFlags flags{
        .prompt = {.argument = "hi "}, .n = 2, .echo = true, .stream = stream};
    ASSERT_TRUE(RunComplete(*client_, flags, console).ok());

    const std::string expected = "[choice 0]\nhi abc\n[choice 1]\nhi ABC\n[colocated";
    EXPECT_EQ(out_.str().substr(0, expected.size()), expected) << "streamed: " << stream;
  }
}

TEST_F(CommandsTest, LogprobsFollowTheirText) {
  harness_.generator.on_start = AnswerWithTwo;
  for (const bool stream : {false, true}) {
    out_.str("");
    Console console = MakeConsole();
    const CompleteFlags flags{.prompt = {.argument = "x"}, .n = 2, .logprobs = 1, .stream = stream};
    ASSERT_TRUE(RunComplete(*client_, flags, console).ok());

    EXPECT_EQ(out_.str().rfind("[choice 0]\nabc\n  100  -0.2500  300 -12.5000\n", 0), 0u)
        << out_.str();
  }
}

TEST_F(CommandsTest, JsonHasAllChoices) {
  harness_.generator.on_start = AnswerWithTwo;
  Console console = MakeConsole();
  const CompleteFlags flags{.prompt = {.argument = "x"}, .n = 2, .logprobs = 1, .json = true};
  ASSERT_TRUE(RunComplete(*client_, flags, console).ok());
  const json response = json::parse(out_.str());

  ASSERT_EQ(response["choices"].size(), 2u);
  EXPECT_EQ(response["choices"][1]["text"], "ABC");
  EXPECT_EQ(response["choices"][1]["index"], 1);
  EXPECT_EQ(response["choices"][0]["logprobs"]["tokens"][2]["alternatives"][0]["id"], 300);
}

TEST_F(CommandsTest, AServersRefusalIsReturned) {
  CompleteFlags flags{.prompt = {.argument = "x"}};
  flags.generation.max_tokens = 0;
  Console console = MakeConsole();
  const absl::Status status = RunComplete(*client_, flags, console);

  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(DescribeError(status).rfind("INVALID_ARGUMENT: max_tokens: ", 0), 0u);
  EXPECT_EQ(out_.str(), "");
}

TEST_F(CommandsTest, AMissingFileIsNamed) {
  Console console = MakeConsole();
  const absl::Status status = RunComplete(*client_, {.prompt = {.file = "no/such"}}, console);

  EXPECT_NE(std::string(status.message()).find("no/such"), std::string::npos);
}

TEST_F(CommandsTest, ChatKeepsTheConversation) {
  Console console = MakeConsole("first\n\nsecond\n");
  ASSERT_TRUE(RunChat(*client_, {.system = "be brief"}, console).ok());

  ASSERT_EQ(harness_.generator.started(), 2u);
  const std::string prompt = PromptOf(1);
  std::size_t at = 0;
  for (const char* part :
       {"system\nbe brief", "user\nfirst", "assistant\nan answer", "user\nsecond", "assistant\n"}) {
    at = prompt.find(part, at);
    ASSERT_NE(at, std::string::npos) << part << " in " << prompt;
  }
}

TEST_F(CommandsTest, AChatGoesOnAfterATurnThatFails) {
  Console console = MakeConsole("bad \xFF\ngood\n");
  EXPECT_EQ(RunChat(*client_, {}, console).code(), absl::StatusCode::kInvalidArgument);

  EXPECT_NE(err_.str().find("chat.messages[0].content"), std::string::npos) << err_.str();
  EXPECT_EQ(PromptOf(0).find("bad"), std::string::npos);
  EXPECT_NE(out_.str().find("an answer"), std::string::npos);
}

TEST_F(CommandsTest, TokenizePrintsAJsonArray) {
  Console console = MakeConsole();
  ASSERT_TRUE(
      RunTokenize(*client_, {.text = {.argument = "<|im_end|>"}, .special = true}, console).ok());
  EXPECT_EQ(out_.str(), "[2]\n");

  out_.str("");
  ASSERT_TRUE(RunTokenize(*client_, {.text = {.argument = ""}}, console).ok());
  EXPECT_EQ(out_.str(), "[]\n");
}

TEST_F(CommandsTest, ModelsAreShown) {
  Console console = MakeConsole();
  ASSERT_TRUE(RunModels(*client_, /*json=*/false, console).ok());
  EXPECT_EQ(out_.str().rfind("tiny\n", 0), 0u);

  out_.str("");
  ASSERT_TRUE(RunModels(*client_, /*json=*/true, console).ok());
  EXPECT_EQ(json::parse(out_.str())["models"][0]["context_tokens"], 1024);
}

TEST(StatusCommand, ShowsTheFleetOnOneScreen) {
  v1::StatusResponse snapshot;
  snapshot.set_role(v1::ROLE_ROUTER);
  snapshot.set_version("9");
  snapshot.set_model("tiny");
  v1::WorkerStatus& worker = *snapshot.add_workers();
  worker.set_address("127.0.0.1:7");
  worker.set_problem("is draining");
  worker.mutable_description()->set_role(v1::ROLE_DECODE);
  (*snapshot.mutable_requests())["colocated/SHORT_PROMPT"] = 4;
  AdminService admin([&snapshot] { return snapshot; });
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&admin);
  const auto server = builder.BuildAndStart();
  const auto client = *CompletionsClient::Create(absl::StrCat("127.0.0.1:", port), {});
  std::istringstream in;
  std::ostringstream out;
  Console console{.in = in, .out = out, .err = out};

  ASSERT_TRUE(RunStatus(*client, /*json=*/false, console).ok());
  for (const char* part : {"baton router 9, model tiny, NOT ready", "decode", "127.0.0.1:7", "dead",
                           "is draining", "colocated/SHORT_PROMPT  4"}) {
    EXPECT_NE(out.str().find(part), std::string::npos) << part << "\n" << out.str();
  }
  out.str("");
  ASSERT_TRUE(RunStatus(*client, /*json=*/true, console).ok());
  EXPECT_EQ(json::parse(out.str())["workers"][0]["description"]["role"], "ROLE_DECODE");
  server->Shutdown();
}

}  // namespace
}  // namespace baton
