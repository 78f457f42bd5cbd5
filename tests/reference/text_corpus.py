"""The 500 varied texts of the tokenizer test: the same list on every run."""

import random
import unicodedata

TEXT_COUNT = 500

# Only characters that Unicode 14 assigns are used (Python 3.11's tables): later ones would test
# whose tables are newer, not whose tokenizer is right.
WHITE_SPACE = ([0x09, 0x0A, 0x0B, 0x0C, 0x0D, 0x20, 0x85, 0xA0, 0x1680] + list(range(0x2000,
0x200B)) +
               [0x2028, 0x2029, 0x202F, 0x205F, 0x3000])
# Looks like white space, or is called so by some library, but has no White_Space property.
FALSE_SPACE = [0x1C, 0x1D, 0x1E, 0x1F, 0xAD, 0x180E, 0x200B, 0x200C, 0x200D, 0x2060, 0x2800, 0x3164,
0xFEFF]

LANGUAGES = [
    "The river froze early that year, and nobody crossed it before spring.",
    "L'été dernier, nous avons mangé des crêpes à côté du théâtre; quel goût!",
    "Der Bäcker verkauft süße Brötchen für 2,50 € – größer als üblich.",
    "El niño pidió un café y preguntó: ¿dónde está la señora Muñoz?",
    "A manhã chegou com pão, maçãs e um violão desafinado.",
    "Perché la città è così silenziosa? Chissà, sarà l'inverno.",
    "De koning reed met zijn fiets langs de vijf molens.",
    "Þórður sá ljósið á fjallinu og fór heim að sofa.",
    "Smørrebrød på bordet, åben dør og østenvind.",
    "Hyvää yötä, sanoi mies ja sammutti lyhdyn.",
    "Zażółć gęślą jaźń, a potem idź do łóżka.",
    "Příliš žluťoučký kůň úpěl ďábelské ódy.",
    "Az őrült író hűvös fülkében ült.",
    "Șapte îngeri țin fânul în șură.",
    "Ağaçların gölgesinde İstanbul'u düşündüm, ışık söndü.",
    "Ngày mai trời sẽ mưa, nhớ mang theo chiếc ô của bạn.",
    "Η θάλασσα ήταν ήσυχη και ο ψαράς κοιμόταν.",
    "Снег шёл всю ночь, а утром дети построили крепость.",
    "Їжак з'їв ґрушу під дубом.",
    "Мајката ја затвори вратата и запеа.",
    "ספינה קטנה יצאה מן הנמל עם שחר.",
    "שָׁלוֹם לְךָ, יֶלֶד קָטָן",
    "القط نائم تحت الشجرة والريح هادئة.",
    "كِتَابٌ قَدِيمٌ عَلَى الرَّفِّ رقم ١٢٣",
    "گربه روی دیوار نشسته بود و به ماه نگاه می‌کرد.",
    "بارش کے بعد آسمان صاف ہو گیا۔",
    "नदी के किनारे एक छोटा सा गाँव था।",
    "বৃষ্টি নামার আগে পাখিরা ঘরে ফিরে যায়।",
    "ਕਿਤਾਬਾਂ ਮੇਜ਼ ਉੱਤੇ ਪਈਆਂ ਹਨ।",
    "સવારે સૂરજ ઊગે છે અને પંખી ગાય છે.",
    "மழை பெய்தால் ஆறு நிறையும்.",
    "చెట్టు కింద పిల్లలు ఆడుకుంటున్నారు.",
    "ಮನೆಯ ಮುಂದೆ ಒಂದು ದೊಡ್ಡ ಮರ ಇದೆ.",
    "കടലിൽ തിരമാലകൾ ഉയർന്നു.",
    "ගඟ අයිනේ ගමක් තිබුණා.",
    "แมวนอนอยู่บนหลังคาบ้านตอนเที่ยงคืน",
    "ແມວນອນຢູ່ເທິງຫຼັງຄາ",
    "ကြောင်လေးက အိမ်ခေါင်မိုးပေါ်မှာ အိပ်နေတယ်။",
    "ឆ្មាដេកនៅលើដំបូលផ្ទះ",
    "བོད་ཀྱི་རི་མོ་མཛེས།",
    "ძველი ხიდი მდინარეზე დგას.",
    "Հին կամուրջը գետի վրա է։",
    "ድመቷ በጣሪያው ላይ ተኝታለች።",
    "昨夜下了一场大雪,今天早上孩子们在院子里堆雪人。",
    "昨晚下咗場大雪，今朝啲細路喺院子度堆雪人。",
    "雪が降ったので、駅まで歩いて二十五分かかりました。",
    "ｶﾀｶﾅとひらがなと漢字、ＡＢＣ１２３。",
    "고양이가 지붕 위에서 자고 있다. 가격은 3,000원!",
    "\u1112\u1161\u11ab\u1100\u1173\u11af",  # conjoining jamo
    "caf\u00e9 cafe\u0301 nai\u0308ve \u00c5 A\u030a \u212b",  # composed beside decomposed
    "ᚠᚢᚦᚨᚱᚲ 𐌰𐌱𐌲 𓀀𓁐 𐎀𐎁 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟙𝟚𝟛",
    "ᏣᎳᎩ ᎦᏬᏂᎯᏍᏗ ᐃᓄᒃᑎᑐᑦ ⵜⴰⵎⴰⵣⵉⵖⵜ ߒߞߏ",
    "Zalgo: t̴̢̛̗e̸͓͊x̶̛͇t̷̰̄ ends",
    "mixed العربية and English ועברית 123 ١٢٣ १२३ ๑๒๓",
    "\u202ereversed\u202c \u200frtl mark\u200f isolates \u2066x\u2069",
]

CODE = [
    "int main() {\n  return 0;\n}\n",
    "#include <vector>\n\nstd::vector<int> v{1, 2, 3};\nfor (auto& x : v) {\n\tx *= 2;\n}\n",
    "template <typename T, std::size_t N>\nconstexpr auto size(const T (&)[N]) -> std::size_t { return N; }",
    "def fib(n):\n    if n < 2:\n        return n\n    return fib(n - 1) + fib(n - 2)\n",
    "class A(B):\n\n    def __init__(self, *args, **kwargs) -> None:\n        super().__init__(*args)\n",
    "print(f\"{x!r:>10} {y:.3f}\")\n",
    "SELECT a, COUNT(*) FROM t WHERE b >= 10 AND c LIKE '%x%' GROUP BY a;",
    "fn main() {\n    let v: Vec<u8> = (0..=255).collect();\n    println!(\"{:?}\", v);\n}",
    "const f = async (x) => { await g(x ?? 1); return `v=${x}`; };",
    "func (s *Server) Run(ctx context.Context) error {\n\tselect {\n\tcase <-ctx.Done():\n\t\treturn ctx.Err()\n\t}\n}",
    "public static void main(String[] args) { System.out.println(\"hi\"); }",
    "<div class=\"a b\"><p>&nbsp;text</p></div>\n",
    "{\"a\": [1, 2.5e-3, null, true], \"b\": {\"c\": \"\\u00e9\\n\"}}",
    "for i in $(seq 1 10); do echo \"$i\" >> out.txt; done\n",
    "- name: build\n  run: |\n    make -j4\n    make test\n",
    "\\begin{equation}\n  E = mc^2 \\quad \\int_0^\\infty e^{-x}\\,dx\n\\end{equation}",
    "0x1F + 0b1010 - 1_000_000 * 3.14159e+00",
    "mov eax, [rbx+8*rcx-0x10]\njne .L3\n",
    "diff --git a/x b/x\n@@ -1,3 +1,4 @@\n-old\n+new\n",
    "CREATE TABLE \"t\" (id INTEGER PRIMARY KEY, name TEXT NOT NULL);\r\n",
    "if (a&&b||!c) {x=a?b:c;}//comment\n/* block\n * comment */",
    "let rec map f = function [] -> [] | x :: xs -> f x :: map f xs",
    "main :: IO ()\nmain = mapM_ print $ filter even [1..10]\n",
    "(defn square [x] (* x x))",
    "FROM debian:12\nRUN apt-get update && apt-get install -y git\n",
    "| a | b |\n|---|:-:|\n| 1 | 2 |\n",
    "# Title\n\n1. one\n2. two\n\n```python\nx = 1\n```\n",
    "https://example.org/a/b?c=d&e=%20f#g-h_i",
    "user.name+tag@mail.example.org, 192.168.0.1:8080, [::1]:443",
    "2024-02-29T23:59:60.123456+01:00",
    "C:\\Users\\x\\file.txt ../../etc ./run.sh ~/.bashrc",
    "regex: ^(?:[a-z0-9]+)(?<!x)\\d{2,5}\\s*$",
    "a\tb\tc\n1\t2\t3\n\n\n\td\n",
    "    \n        indented\n\t\tmixed \t tabs\n   \n",
]

EMOJI = [
    "😀", "I ❤️ you", "👍🏽👍🏿", "👨‍👩‍👧‍👦 family", "👩🏾‍🚀 and 👨🏻‍🍳", "🏳️‍🌈🏴‍☠️", "🇩🇪🇯🇵🇧🇷🇺",
    "1️⃣2️⃣#️⃣*️⃣",
    "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "☺︎ text, ☺️ emoji", "😀😀😀😀😀😀😀😀", "a😀b😀 c 😀 d", "🧑‍🤝‍🧑🫶🫡", "🤷🏼‍♀️ shrug", "👁️‍🗨️",
    "❤️‍🔥❤️‍🩹",
    "no joiner 👨👩", "joiner alone x\u200dy", "\u200d", "\ufe0f", "🏿", "🎉 1️⃣0️⃣0️⃣ 🎉\n🎉", "😶‍🌫️…",
    "→⇒⟶ ★☆ ♠♥♦♣ ☑☒", "①②③ ½ ¾ ⅷ Ⅷ ㊿",
]

CONTRACTIONS = [
    "I'm sure they're late; we'd've said it's what he'll want, isn't it?",
    "I'M SURE THEY'RE LATE; IT'S HE'LL",
    "'s 't 're 've 'm 'll 'd", "''s'' 'sx 'd1 're're", "it’s they’re — curly", " 's  't   're",
    "rock'n'roll o'clock 'twas",
    "x's\ny't\n\n'll", "1's 2'nd 3're", "'S 'T 'Ve 'lL", "don't'", "'",
]

MISCELLANEOUS = [
    "", " ", "  ", "\n", "\n\n", "\n\n\n", "\r\n", "\r\n\r\n", "\t", "\t\t \n", "a", "A", "0", ".",
    " a", "a ", " a ", "\na", "a\n",
    "a\n\nb\n\n\nc\n", "\n \n  \n   x", "trailing   ", "   leading", "x \n y", "x\n  \n  y", "  \n",
    "\n  ", " \t\n\r\x0b\x0c ",
    "e", "\u00e9", "e\u0301", "ß", "ŉ", "ﬁ ﬂ", "ǅ", "º ª", "ʰ ˀ ˈ", "ー", "々", "ـ", "_", "__",
    "_a_1_", "-", "--", "---", "…", "“quoted”", "«x»",
    "hello", "Hello", "HELLO", "hELLO", " Hello World", "HelloWorld", "hello_world", "hello-world",
    "hello.world", "Hello, World!",
    "!?!?", "...", "a...b", "a ... b", "$100", "$ 100", "100%", "#1", "@x", "a@b", "a+b=c",
    "a + b = c", "(a)", "( a )", "[x](y)", "{}",
    "~`!@#$%^&*()_+-={}|[]\\:\";'<>?,./", "The quick brown fox jumps over the lazy dog 1234567890",
    "Ġ", "Ċ", "ĠThe", "aĠb", "ÃĤ", "âĢĻ", "▁the", "Ġ Ċ ĉ", "\ufffd", "a\ufffdb", "\uffff",
    "\U0010ffff", "\ue000", "\U000f0000 x",
    "supercalifragilisticexpialidocious", "Donaudampfschifffahrtsgesellschaftskapitän", "aAaAaA",
    "aaAAaa11bb22", "abc123def456", "v1.2.3-rc.4",
    "3.14 2,718 1/2 10^9 1e-9", "٣٤٥ ۳۴۵ ३४५ ৩৪৫ ๓๔๕ ３４５", "x²+y³=z⁴", "H₂O CO₂", "½ cup, ¾ tsp",
    "Ⅳ. ⅳ) ④", "一二三 〇 〡 〢", "12:34:56",
]


def _special_look_alikes(control_tokens: list[str]) -> list[str]:
    texts = []
    for token in control_tokens:
        texts += [token, f"x{token}y", f" {token} \n{token}{token}", token[:-1], token[1:]]
    start, end = "<|im_start|>", "<|im_end|>"
    texts += [
        "< |im_end|>", "<|im_end |>", "<| im_end|>", "<|im_end|", "<|im_<|im_end|>end|>",
        "<<|im_end|>>", "<|im_start|>1<|im_end|> 2",
        "<|im_startX|>", "<\u200b|im_start|>", "<｜im_start｜>", "&lt;|im_start|&gt;",
        "\\<|im_start|\\>", "'<|im_end|>'s",
        f"{start}user\nHello{end}\n{start}assistant\n",
        f"{start}system\nYou are {start} quoted{end}{end}\n",
        f"  {start}  {end}  ", f"3{start}  3{end}\t3", "<s></s><unk><pad>[CLS][SEP][MASK]",
        "<|assistant|><|user|><|eot_id|>",
        "<|endoftext|><|endoftext|>\n\n<|endoftext|>", "<|end of text|>", "é<|im_end|>\u0301",
        "👨\u200d<|im_end|>\u200d👩",
    ]
    return texts


def _white_space_texts() -> list[str]:
    texts = []
    for code in WHITE_SPACE + FALSE_SPACE:
        space = chr(code)
        texts.append(f"a{space}b{space}{space}c {space}d{space} e\n"
                     f"{space}1{space}{space}2{space}.{space}")
    every = "".join(map(chr, WHITE_SPACE))
    texts += [every, "x" + every + "y", "".join(f"{chr(code)}w" for code in WHITE_SPACE),
              "".join(f"{chr(code)}7" for code in WHITE_SPACE)]
    return texts


def _number_texts() -> list[str]:
    numbers = [chr(code) for code in range(0x110000)
               if unicodedata.category(chr(code)).startswith("N")]
    texts = []
    per_text = 80
    for start in range(0, len(numbers), per_text):
        group = numbers[start:start + per_text]
        # Alone, after a letter and after a space: the three neighbours that change a split.
        texts.append("".join(group[0::3]) + "".join("a" + c for c in group[1::3]) +
                     "".join("  " + c for c in group[2::3]))
    return texts


def _digit_texts() -> list[str]:
    texts = ['  3', 'x   42\n  7', 'a  3b', 'x²³ Ⅷ']  # the vectors of the model's reference page
    for spaces in range(0, 8):
        gap = " " * spaces
        texts.append(f"{gap}7{gap}x{gap}42{gap}\n{gap}9{gap}")
    texts += ["1 2  3   4    5", "\t1\t\t2\t\t\t3", "a1b22c333d4444", "1\n2\n\n3\n\n\n4",
    "  -5   +6   .7", "1,000,000.00", "00007", " \u00a03 \u00a0 4",
              "  ٣   ٤", "１ ２  ３", "²³ Ⅷ"]
    return texts


def _control_character_texts() -> list[str]:
    codes = list(range(0x00, 0x20)) + list(range(0x7F, 0xA0))
    texts = []
    for start in range(0, len(codes), 8):
        texts.append("".join(f"a{chr(c)}b {chr(c)}{chr(c)}1" for c in codes[start:start + 8]))
    # Bytes without a token of their own between characters that would merge.
    texts += ['"\x04"', ".\x06.\x13.", "=\x1d\x16=", "a\U00040000b \U00080000",
    "\U00040000\U00041000 \U000bfffd!"]
    return texts


def _run_texts() -> list[str]:
    return ["a" * 300, "A" * 129, " " * 63, " " * 64, " " * 65, "x" + " " * 200 + "y", "\n" * 100,
    "\t" * 33, "\r\n" * 20, "=" * 120,
            "-" * 80 + "\n", "." * 77, "0" * 60, "12" * 30, "ab" * 120, "\u00e9" * 60,
            "e\u0301" * 40, "中" * 60, "😀" * 30, "\u3000" * 20,
            "\u200d" * 20, "!" * 50 + "?" * 50, "ha" * 60 + "!", "the " * 80, "Paris\n" * 30,
            "\x00" * 20, "'s" * 30, "_" * 90, "#" * 40 + " x",
            "A" + "\u0301" * 40]


def _random_texts(count: int) -> list[str]:
    generator = random.Random(20240229)
    letters = "abcdefghijklmnopqrstuvwxyzABCXYZ"
    pieces = (list(" \n\t'.,!?-_/\\<>|{}()[]\"") + ["  ", "   ", "\r\n", "'s", "'re", "the", " and",
    "ing", "1", "42", "٣", "Ⅷ", "é", "ß", "ж", "中", "が",
              "한", "ا", "ש", "😀", "\u200d", "\u0301", "\u00a0", "\u3000", "\u2003", "<|", "|>",
              "im_end", "<|im_end|>", "<|im_start|>", "\x00", "\x7f", "Ġ"])
    assigned = [code for code in range(0x30000)
                if unicodedata.category(chr(code)) not in ("Cn", "Cs",
                "Co") and not 0x3400 <= code <= 0x9FFF]
    texts = []
    for index in range(count):
        parts = []
        if index % 2 == 0:
            for _ in range(generator.randint(3, 28)):
                if generator.random() < 0.6:
                    parts.append(generator.choice(pieces))
                else:
                    parts += generator.choices(letters, k=generator.randint(1, 7))
        else:
            parts = [chr(generator.choice(assigned)) for _ in range(generator.randint(4, 18))]
        texts.append("".join(parts))
    return texts


def make_texts(control_tokens: list[str]) -> list[str]:
    texts = (_digit_texts() + LANGUAGES + CODE + EMOJI + CONTRACTIONS + MISCELLANEOUS +
             _special_look_alikes(control_tokens) +
             _white_space_texts() + _number_texts() + _control_character_texts() + _run_texts())
    texts = list(dict.fromkeys(texts))
    # Room is filled with random mixtures; never fewer than 20 of them.
    assert len(texts) <= TEXT_COUNT - 20, len(texts)
    known = set(texts)
    fresh = [text for text in _random_texts(2 * TEXT_COUNT) if text not in known]
    texts += fresh[:TEXT_COUNT - len(texts)]
    assert len(texts) == TEXT_COUNT
    return texts
