-- now 1800000080 invite U44FC-CHCME grant PJPA open MD9E
PRAGMA application_id = 1835560548;
PRAGMA user_version = 1;
BEGIN TRANSACTION;
CREATE TABLE accounts (
        platform  TEXT NOT NULL,
        sender_id TEXT NOT NULL,
        person_id TEXT NOT NULL REFERENCES people (person_id) ON DELETE CASCADE,
        PRIMARY KEY (platform, sender_id)) WITHOUT ROWID;
INSERT INTO "accounts" VALUES('telegram','111','telegram:111');
INSERT INTO "accounts" VALUES('telegram','222','telegram:222');
INSERT INTO "accounts" VALUES('telegram','333','telegram:333');
CREATE TABLE addresses (
        platform   TEXT NOT NULL,
        user_id    TEXT NOT NULL,
        chat_id    TEXT NOT NULL,
        chat_type  TEXT NOT NULL,
        thread_id  TEXT NOT NULL,
        learned_at REAL NOT NULL,
        PRIMARY KEY (platform, user_id)) WITHOUT ROWID;
INSERT INTO "addresses" VALUES('telegram','111','111','dm','',1800000003.0);
CREATE TABLE approvals (
        ask_id      INTEGER PRIMARY KEY AUTOINCREMENT,
        code        TEXT NOT NULL,
        kind        TEXT NOT NULL CHECK (kind IN ('tool', 'host')),
        person_id   TEXT NOT NULL,
        tool        TEXT NOT NULL,
        args_json   TEXT NOT NULL,
        args_digest TEXT NOT NULL,
        binding     TEXT NOT NULL CHECK (binding IN ('arguments', 'tool')),
        differs     INTEGER NOT NULL,
        via         TEXT NOT NULL,
        chat        TEXT NOT NULL,
        parked_at   REAL NOT NULL,
        expires_at  REAL NOT NULL,
        shown_at    REAL,
        closed_at   REAL,
        outcome     TEXT CHECK (outcome IN
                    ('approved', 'denied', 'expired', 'superseded', 'withdrawn')),
        answered_by TEXT NOT NULL DEFAULT '',
        reason      TEXT NOT NULL DEFAULT '',
        uses_left   INTEGER NOT NULL DEFAULT 0 CHECK (uses_left >= 0),
        grant_until REAL,
        CHECK ((closed_at IS NULL) = (outcome IS NULL)));
INSERT INTO "approvals" VALUES(1,'PJPA','tool','telegram:222','terminal','{"command":"make backup"}','8e1b2171f0dd15f326c312a49962783b6e7d39632d7d2a29be8c8a3cf24d92df','arguments',0,'','{"platform": "telegram", "user_id": "222", "chat_id": "222", "chat_type": "dm", "thread_id": ""}',1800000042.0,1800000165.0,1800000045.0,1800000047.0,'approved','telegram:111','',2,1800007247.0);
INSERT INTO "approvals" VALUES(2,'J6DH','tool','telegram:222','write_file','{"content":"x","path":"/etc/hosts"}','48315803a27b22417badbf69b57a83aba3c5243a27f9031b9aa3bfacceda1106','arguments',0,'','{"platform": "telegram", "user_id": "222", "chat_id": "222", "chat_type": "dm", "thread_id": ""}',1800000064.0,1800000187.0,1800000067.0,1800000069.0,'denied','telegram:111','not that file',0,NULL);
INSERT INTO "approvals" VALUES(3,'MD9E','tool','telegram:333','web_search','{"q":"tea"}','70663ec14c279dcfac1026a5088ca09073122171c869c5f0eed08fb38169a9a6','arguments',0,'','{"platform": "telegram", "user_id": "333", "chat_id": "333", "chat_type": "dm", "thread_id": ""}',1800000074.0,1800000197.0,1800000077.0,NULL,NULL,'','',0,NULL);
CREATE TABLE attempts (
        attempt_id INTEGER PRIMARY KEY,
        account    TEXT NOT NULL,
        at         REAL NOT NULL);
CREATE TABLE audit (
        audit_id  INTEGER PRIMARY KEY AUTOINCREMENT,
        at        REAL NOT NULL,
        kind      TEXT NOT NULL CHECK (kind IN
                  ('turn', 'tool', 'refusal', 'approval', 'policy', 'memory', 'tokens')),
        event     TEXT NOT NULL,
        person_id TEXT NOT NULL,
        tool      TEXT NOT NULL,
        code      TEXT NOT NULL,
        detail    TEXT NOT NULL,
        chain     TEXT NOT NULL);
INSERT INTO "audit" VALUES(1,1800000002.0,'policy','claim code','cli:uid:0','','','','f1abcb9e686dbb6c2da146a0ca8ed84ef578ad94db8ae669b874a7f39c4a9ebc');
INSERT INTO "audit" VALUES(2,1800000003.0,'policy','joined','telegram:111','','','as owner by claim, named Boss','4d0eacdeece8a4dbc3883dcab1856d223f1b42db3f9641c07c1b25f77cc9b01d');
INSERT INTO "audit" VALUES(3,1800000005.0,'turn','turn','telegram:111','','','','d01994959cf86909573ab3ff4bfce374792774fb278759cbdbe17b18a9d03301');
INSERT INTO "audit" VALUES(4,1800000007.0,'tokens','used','telegram:111','','','10 tokens','10acf222366d2a8e0f5cabf31f51ced268cd2ff6e72023e9b385e75231a6cca6');
INSERT INTO "audit" VALUES(5,1800000008.0,'policy','invite','telegram:111','','','member, 72 h','36d925d2bcf4ca5b034c744b3b25645be1a639fed59a81fe9c03aeded89af11d');
INSERT INTO "audit" VALUES(6,1800000009.0,'policy','joined','telegram:222','','','as member by invite, named Minh','733c29dbb7ec9da94859e8d73e2b4073fc1b163099fd3f8f663dc5a6b99c8b03');
INSERT INTO "audit" VALUES(7,1800000009.0,'policy','joined','telegram:222','','','Welcome, Minh. You have joined as a member. Just write what you need; /many whoami shows what you may use and /many help lists your commands.','0f3a541f643ce19e8f4279920300787512b7b898103fff819de64b2c06900621');
INSERT INTO "audit" VALUES(8,1800000010.0,'policy','joined','telegram:333','','','as guest by telegram:111, named Lan','f507a41758e5ddb87892ef9859dff50a2b9364189e90eaaf8254c0e62c1756c5');
INSERT INTO "audit" VALUES(9,1800000011.0,'policy','budget','telegram:333','','','5,000 tokens a day for Lan, by telegram:111','22f5c51083912e18796ce3880800e036ba340274c1ab97815360cdd5d7cc3bab');
INSERT INTO "audit" VALUES(10,1800000012.0,'policy','budget','telegram:111','','','9,000 tokens a day for every guest, by telegram:111','9903da49c3aac555f7235b7b078b0f87b52f6c624ac5a0f5ebc252d4c387739a');
INSERT INTO "audit" VALUES(11,1800000013.0,'policy','tools','telegram:222','','','add notes_write for Minh, by telegram:111','5b019043358edbdb339f10fb9300daa31d86c01275ddc585e248c88d452d978f');
INSERT INTO "audit" VALUES(12,1800000014.0,'policy','tools','telegram:111','','','ask web_search for every guest, by telegram:111','67b6bb41b6b40bb6e350469f08edd07e6c3b3a26d539e680c7703fae51b58fd3');
INSERT INTO "audit" VALUES(13,1800000016.0,'turn','turn','telegram:222','','','','d237ab677f5c1d31fe77d6d12d98b7d776a4c544c6597e30fc593c0f11049232');
INSERT INTO "audit" VALUES(14,1800000018.0,'tokens','used','telegram:222','','','10 tokens','554598cdd6acc025c5a045de584ac192348c9dcc0a08c4bac30a23a1ad341052');
INSERT INTO "audit" VALUES(15,1800000019.0,'tool','allow','telegram:222','manyhands_remember','','role_allow','b5a9646bc75266241dcdbff0b5327d74621b05d0d49202fd7491434065a819f8');
INSERT INTO "audit" VALUES(16,1800000020.0,'memory','remember','telegram:222','','','number 1','68a684dcdec5963078028d858ad8172f43e7470245a5b853566b6b7651e723c8');
INSERT INTO "audit" VALUES(17,1800000022.0,'tokens','used','telegram:222','','','10 tokens','c1e72752f12cdad5659639b82a84d1cb4cff766a7817984cbbfcc83d9fc4b502');
INSERT INTO "audit" VALUES(18,1800000023.0,'tool','allow','telegram:222','manyhands_share','','role_allow','9d78523fa30e0ab383ad594338ac32a496b576a6e10f35671c7bcf18ec7b7253');
INSERT INTO "audit" VALUES(19,1800000024.0,'memory','share','telegram:222','','','number 1','656848cba8b2b049a80093f6953c2bd182fefa42fd1c22f68de9903ceded18f3');
INSERT INTO "audit" VALUES(20,1800000026.0,'tokens','used','telegram:222','','','10 tokens','6eef13b51f7ca11f5e206d1a50ade5b6c8223da4d92f5bfa2c1d85469d5632ab');
INSERT INTO "audit" VALUES(21,1800000028.0,'turn','turn','telegram:333','','','','e9b2e7331c31632c2b8ca59eb5d7d8e8e2fc7c8915cdefb4f22d326ea70cb4d2');
INSERT INTO "audit" VALUES(22,1800000030.0,'tokens','used','telegram:333','','','10 tokens','042bc85fcf3373cbb37bc49b2fecb845cef10a7993d3d7a87f8f30779526e0f2');
INSERT INTO "audit" VALUES(23,1800000031.0,'tool','allow','telegram:333','manyhands_remember','','role_allow','4a0a175678449d24b8a222bbe58003ccfbfdcb34397c096243a4f0ae9c6a7b2b');
INSERT INTO "audit" VALUES(24,1800000032.0,'memory','remember','telegram:333','','','number 1','310a374597e752135e1eb5aff7dacc1b56704b4859dce8144922c3db6e734b3c');
INSERT INTO "audit" VALUES(25,1800000034.0,'tokens','used','telegram:333','','','10 tokens','648ce6a691f875f13aa4083415eed0085f7edb4dbde91c527977c2f4de076ae5');
INSERT INTO "audit" VALUES(26,1800000035.0,'refusal','not admitted','telegram:444','','','','bab4ebc6c92a39f553e4ac49b8f5acd9c57ab247986deb34fdf14599bc1616a0');
INSERT INTO "audit" VALUES(27,1800000036.0,'turn','notice','telegram:111','','','','60b7b04d50ac5aa772a6a300a0bdef9b900c65595968ace0223f2e6dc4d44857');
INSERT INTO "audit" VALUES(28,1800000039.0,'turn','turn','telegram:222','','','','87ba271366dbb8f277127cb2947ab77952a4ad09af0541d7d881d43188c5b68f');
INSERT INTO "audit" VALUES(29,1800000041.0,'tokens','used','telegram:222','','','10 tokens','c58082bde04eee2b69294fcc06e45d23311d1b8947fdefcf0839ec6fc2846c52');
INSERT INTO "audit" VALUES(30,1800000042.0,'approval','asked','telegram:222','terminal','PJPA','{"command":"make backup"}','608f9e34dc3faec986b6dcfa3ab049e68fc9e54e1e2183996e01a5df73c49cb3');
INSERT INTO "audit" VALUES(31,1800000042.0,'tool','ask','telegram:222','terminal','','role_ask','995c6a7473bc58cd69cbf22869cae98570039eb69dca4c31bd307f5431c5acd0');
INSERT INTO "audit" VALUES(32,1800000044.0,'tokens','used','telegram:222','','','10 tokens','c3b398e15b0b82612e322e62d81bc9a783848232c0b9470a9113f2bf0d5bab20');
INSERT INTO "audit" VALUES(33,1800000045.0,'approval','shown','telegram:222','terminal','PJPA','','a21d15891546adec777cf9ce61554b44cf9bc64bcb64fe695883e90dffa70b61');
INSERT INTO "audit" VALUES(34,1800000045.0,'turn','notice','telegram:111','','','','a82674e5f90ea94b5dd31dec35bd3a82ab1d4b8d42d6daac407c2364ed83f7c7');
INSERT INTO "audit" VALUES(35,1800000047.0,'approval','approved','telegram:222','terminal','PJPA','by telegram:111: 3 times, with exactly these arguments, within 2 h','5a0cf7a33f59ec51dd21c4e3e12220b9f7e8c4eae760e73f6d391ff18ebf0dc9');
INSERT INTO "audit" VALUES(36,1800000048.0,'turn','notice','telegram:222','','','','efff0e918ed812724384693cc92789b709c8bedb65ba5bbd7b70d2ce62976522');
INSERT INTO "audit" VALUES(37,1800000050.0,'turn','resumed','telegram:222','','','','feaaa0dd40252c5c63449898d6de693dafbb7091c22bb1bf0bb6eedf9f18ba76');
INSERT INTO "audit" VALUES(38,1800000052.0,'tokens','used','telegram:222','','','10 tokens','55b914212b44db9bc47356db0e917973c7fc340742dffaaca52ed47d96c3c89a');
INSERT INTO "audit" VALUES(39,1800000054.0,'turn','turn','telegram:222','','','','2bf1bfdab5b79c55bb75a9e45df868a164c2b093a85e438d14b4a2efeaed55d3');
INSERT INTO "audit" VALUES(40,1800000056.0,'tokens','used','telegram:222','','','10 tokens','7407ecbdb1a21623ec868971841c57bcda9edb965dc1b7b1a9510f5dd3fa7668');
INSERT INTO "audit" VALUES(41,1800000057.0,'approval','spent','telegram:222','terminal','PJPA','','634919a1146f926385959cb218981d713c87c9354c11f1686ebb8331f9749b26');
INSERT INTO "audit" VALUES(42,1800000057.0,'tool','allow','telegram:222','terminal','','spent a grant','82f6b96ca6c718fd151303b30257f32d6896f4d0a6011898634a44c9c9c18554');
INSERT INTO "audit" VALUES(43,1800000059.0,'tokens','used','telegram:222','','','10 tokens','71ee10d9d67590d2dc1ea9eb6e746083a049e2dbba545da102c1c0a51babaf8c');
INSERT INTO "audit" VALUES(44,1800000061.0,'turn','turn','telegram:222','','','','d43b5ea58d1bab1d788862698e857c2d005d475b89d1c9128acc33e7f994562d');
INSERT INTO "audit" VALUES(45,1800000063.0,'tokens','used','telegram:222','','','10 tokens','9930f93fa58b98098ac16162fac0a252a3b0ec6ade5d95e151a95ff49a8a841f');
INSERT INTO "audit" VALUES(46,1800000064.0,'approval','asked','telegram:222','write_file','J6DH','{"content":"x","path":"/etc/hosts"}','3612d7419d0957642508abb53c8be891f7a050acdd87f8a86988dd6b9f71bf13');
INSERT INTO "audit" VALUES(47,1800000064.0,'tool','ask','telegram:222','write_file','','role_ask','797b4fe8f3c5d894d5e9ab21138478ef383bfe265074fe58ec859500b7fe20e0');
INSERT INTO "audit" VALUES(48,1800000066.0,'tokens','used','telegram:222','','','10 tokens','5299c4feef8cbf5f64541fb71b5ca1ebcfad0c333944e1e1f56447fc13e6f8fb');
INSERT INTO "audit" VALUES(49,1800000067.0,'approval','shown','telegram:222','write_file','J6DH','','49091ae6b1de5adb1a9c9eae10f7511609653df498888604b4c67cd9d5d3e692');
INSERT INTO "audit" VALUES(50,1800000067.0,'turn','notice','telegram:111','','','','696e2dc7607a12cf4fe3f01484d8f39170464a0b719a6aac0564516dc1492f19');
INSERT INTO "audit" VALUES(51,1800000069.0,'approval','denied','telegram:222','write_file','J6DH','by telegram:111: not that file','4dea3232ce958862cfa5f6ca50856ebae7b7bf837903747c41d14e357f63e978');
INSERT INTO "audit" VALUES(52,1800000071.0,'turn','turn','telegram:333','','','','51ff4e6c825bc505733f20015e14df9a08c189fc069f06f271fb3e0655660883');
INSERT INTO "audit" VALUES(53,1800000073.0,'tokens','used','telegram:333','','','10 tokens','bfded20954699a37cb104ada1f071f8f43ef7e227522e506b0568d0c0bc8d2e5');
INSERT INTO "audit" VALUES(54,1800000074.0,'approval','asked','telegram:333','web_search','MD9E','{"q":"tea"}','4b76fe37bb3c8301a6f757819b0a3efed93b4ecc8980da2302715bdd49c140fd');
INSERT INTO "audit" VALUES(55,1800000074.0,'tool','ask','telegram:333','web_search','','role_list_ask','dc92045066b715c10541c7b03af11a29cc99c9264c7f14fce2e2485e90f30d39');
INSERT INTO "audit" VALUES(56,1800000076.0,'tokens','used','telegram:333','','','10 tokens','05b75b5605e36311a3d923cb289e175cc79b2bd7dcfb6a7430d5d7129a75ce4d');
INSERT INTO "audit" VALUES(57,1800000077.0,'approval','shown','telegram:333','web_search','MD9E','','e51022fd5ff1ab261256045293e2f4e4e350519e1c98386dc057bb8f41ef0a7a');
INSERT INTO "audit" VALUES(58,1800000077.0,'turn','notice','telegram:111','','','','d1f60651c1d99ffb3aee4c5c5d0d0be82174d21a9e306cea016547dcbab14726');
INSERT INTO "audit" VALUES(59,1800000079.0,'policy','invite','telegram:111','','','guest, 72 h','821f2b7fdddef2ae871f5ee1dd28ea1cc76d7df6b96584f413a6b818d27aec95');
CREATE TABLE claims (
        code_hash  TEXT PRIMARY KEY,
        made_at    REAL NOT NULL,
        expires_at REAL NOT NULL,
        used_at    REAL) WITHOUT ROWID;
INSERT INTO "claims" VALUES('6c9d7e2428a83e6e5372ea856c8cbbe4c4c890fe1172b52b323fc206236786cd',1800000002.0,1800000602.0,1800000003.0);
CREATE TABLE counters (
        name  TEXT PRIMARY KEY,
        value INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO "counters" VALUES('facts telegram:222',1);
INSERT INTO "counters" VALUES('facts telegram:333',1);
CREATE TABLE facts (
        person_id TEXT NOT NULL,
        n         INTEGER NOT NULL,
        text      TEXT NOT NULL,
        topic     TEXT NOT NULL,
        digest    TEXT NOT NULL,
        made_at   REAL NOT NULL,
        PRIMARY KEY (person_id, n),
        UNIQUE (person_id, digest)) WITHOUT ROWID;
INSERT INTO "facts" VALUES('telegram:222',1,'I am allergic to peanuts and Erdnüsse','food','a735a1be1f747d4b1c479d3ec8e59f270ab6c7206906411a73d11ccd1ee988a5',1800000020.0);
INSERT INTO "facts" VALUES('telegram:333',1,'我喜欢喝绿茶','','7d9f52c67134c47ee4caae5417eeebca5a98b2cde4fc516c1f30594c54d5090c',1800000032.0);
CREATE TABLE invites (
        invite_id   INTEGER PRIMARY KEY AUTOINCREMENT,
        code_hash   TEXT NOT NULL UNIQUE,
        role        TEXT NOT NULL CHECK (role IN ('member', 'guest')),
        made_by     TEXT NOT NULL,
        made_at     REAL NOT NULL,
        expires_at  REAL NOT NULL,
        redeemed_at REAL,
        redeemed_by TEXT);
INSERT INTO "invites" VALUES(1,'c4f456a11c3fdf2217064a9389f1c4de6624f9238abea68d80ffac499bf8d415','member','telegram:111',1800000008.0,1800259208.0,1800000009.0,'telegram:222');
INSERT INTO "invites" VALUES(2,'477946a76ebaed83168621e5bcbe329a3aba325ba00dac6c7ceca1516caf6b69','guest','telegram:111',1800000079.0,1800259279.0,NULL,NULL);
CREATE TABLE lineage (
        session_id TEXT PRIMARY KEY,
        account    TEXT NOT NULL,
        chat       TEXT NOT NULL,
        started_at REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE notices (
        nonce      TEXT PRIMARY KEY,
        kind       TEXT NOT NULL CHECK (kind IN ('ask', 'news', 'outcome', 'resume')),
        ask_id     INTEGER,
        text       TEXT NOT NULL,
        person_id  TEXT NOT NULL,
        platform   TEXT NOT NULL,
        user_id    TEXT NOT NULL,
        chat_id    TEXT NOT NULL,
        chat_type  TEXT NOT NULL,
        thread_id  TEXT NOT NULL,
        made_at    REAL NOT NULL,
        sent_at    REAL,
        shown_at   REAL) WITHOUT ROWID;
INSERT INTO "notices" VALUES('1c7e79ec5d8cdfdb3c37293688efdb23','resume',1,'','telegram:222','telegram','222','222','dm','',1800000047.0,1800000047.0,1800000050.0);
INSERT INTO "notices" VALUES('335afe24b1da9c41257a8235179f9327','ask',2,'','telegram:111','telegram','111','111','dm','',1800000064.0,1800000064.0,1800000067.0);
INSERT INTO "notices" VALUES('63b1a7cdb1806506ff55a47a7c53352d','ask',1,'','telegram:111','telegram','111','111','dm','',1800000042.0,1800000042.0,1800000045.0);
INSERT INTO "notices" VALUES('b1c5339c22fefcdfb8502fec96047e61','ask',3,'','telegram:111','telegram','111','111','dm','',1800000074.0,1800000074.0,1800000077.0);
INSERT INTO "notices" VALUES('cd200f83cef4a8ba2d4c31a1b4265457','outcome',1,'The owner approved Minh''s request for terminal. It is made again now.','telegram:222','telegram','222','222','dm','',1800000047.0,1800000047.0,1800000048.0);
INSERT INTO "notices" VALUES('ead3ed7703f6dc963a0278394b441ac1','outcome',2,'The owner said no to Minh''s request for write_file. Reason given: not that file','telegram:222','telegram','222','222','dm','',1800000069.0,1800000069.0,NULL);
INSERT INTO "notices" VALUES('fa951afeb34f2c01bdcd38a5bb0ea31e','news',NULL,'Minh (telegram:222) joined as a member.','telegram:111','telegram','111','111','dm','',1800000009.0,1800000009.0,1800000036.0);
CREATE TABLE people (
        person_id TEXT PRIMARY KEY,
        name      TEXT NOT NULL,
        name_key  TEXT NOT NULL UNIQUE,
        role      TEXT NOT NULL CHECK (role IN ('owner', 'member', 'guest', 'blocked')),
        budget    INTEGER CHECK (budget IS NULL OR budget >= 0),
        joined_at REAL NOT NULL,
        joined_by TEXT NOT NULL);
INSERT INTO "people" VALUES('telegram:111','Boss','boss','owner',NULL,1800000003.0,'claim');
INSERT INTO "people" VALUES('telegram:222','Minh','minh','member',NULL,1800000009.0,'invite');
INSERT INTO "people" VALUES('telegram:333','Lan','lan','guest',5000,1800000010.0,'telegram:111');
CREATE TABLE sessions (
        session_id TEXT NOT NULL,
        speaker    TEXT NOT NULL,
        first_at   REAL NOT NULL,
        last_at    REAL NOT NULL,
        PRIMARY KEY (session_id, speaker)) WITHOUT ROWID;
INSERT INTO "sessions" VALUES('s-telegram-dm-111','telegram:111',1800000005.0,1800000077.0);
INSERT INTO "sessions" VALUES('s-telegram-dm-222','telegram:222',1800000016.0,1800000061.0);
INSERT INTO "sessions" VALUES('s-telegram-dm-333','telegram:333',1800000028.0,1800000071.0);
CREATE TABLE settings (
        key   TEXT PRIMARY KEY,
        value TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO "settings" VALUES('budget @guest','9000');
CREATE TABLE shared_facts (
        n         INTEGER PRIMARY KEY AUTOINCREMENT,
        author_id TEXT,
        text      TEXT NOT NULL,
        digest    TEXT NOT NULL UNIQUE,
        made_at   REAL NOT NULL);
INSERT INTO "shared_facts" VALUES(1,'telegram:222','the wifi word is on the fridge','97cb60e1ba6849d8cbb1a36c291c516770f1c8967d3f95a4f1e2b8237b403f22',1800000024.0);
CREATE TABLE terms (
        space TEXT NOT NULL,
        term  TEXT NOT NULL,
        n     INTEGER NOT NULL,
        PRIMARY KEY (space, term, n)) WITHOUT ROWID;
INSERT INTO "terms" VALUES('@shared','fridge',1);
INSERT INTO "terms" VALUES('@shared','fridg~',1);
INSERT INTO "terms" VALUES('@shared','is',1);
INSERT INTO "terms" VALUES('@shared','on',1);
INSERT INTO "terms" VALUES('@shared','the',1);
INSERT INTO "terms" VALUES('@shared','wifi',1);
INSERT INTO "terms" VALUES('@shared','word',1);
INSERT INTO "terms" VALUES('telegram:222','allergic',1);
INSERT INTO "terms" VALUES('telegram:222','aller~',1);
INSERT INTO "terms" VALUES('telegram:222','am',1);
INSERT INTO "terms" VALUES('telegram:222','and',1);
INSERT INTO "terms" VALUES('telegram:222','erdnüsse',1);
INSERT INTO "terms" VALUES('telegram:222','erdnü~',1);
INSERT INTO "terms" VALUES('telegram:222','food',1);
INSERT INTO "terms" VALUES('telegram:222','i',1);
INSERT INTO "terms" VALUES('telegram:222','peanuts',1);
INSERT INTO "terms" VALUES('telegram:222','peanu~',1);
INSERT INTO "terms" VALUES('telegram:222','to',1);
INSERT INTO "terms" VALUES('telegram:333','喜',1);
INSERT INTO "terms" VALUES('telegram:333','喜欢',1);
INSERT INTO "terms" VALUES('telegram:333','喝',1);
INSERT INTO "terms" VALUES('telegram:333','喝绿',1);
INSERT INTO "terms" VALUES('telegram:333','我',1);
INSERT INTO "terms" VALUES('telegram:333','我喜',1);
INSERT INTO "terms" VALUES('telegram:333','欢',1);
INSERT INTO "terms" VALUES('telegram:333','欢喝',1);
INSERT INTO "terms" VALUES('telegram:333','绿',1);
INSERT INTO "terms" VALUES('telegram:333','绿茶',1);
INSERT INTO "terms" VALUES('telegram:333','茶',1);
CREATE TABLE tool_rules (
        subject TEXT NOT NULL,
        tool    TEXT NOT NULL,
        effect  TEXT NOT NULL CHECK (effect IN ('allow', 'ask', 'remove')),
        PRIMARY KEY (subject, tool)) WITHOUT ROWID;
INSERT INTO "tool_rules" VALUES('@guest','web_search','ask');
INSERT INTO "tool_rules" VALUES('telegram:222','notes_write','allow');
CREATE TABLE usage (
        person_id TEXT NOT NULL,
        day       INTEGER NOT NULL,
        tokens    INTEGER NOT NULL,
        PRIMARY KEY (person_id, day)) WITHOUT ROWID;
INSERT INTO "usage" VALUES('telegram:111',20833,10);
INSERT INTO "usage" VALUES('telegram:222',20833,100);
INSERT INTO "usage" VALUES('telegram:333',20833,40);
CREATE INDEX accounts_of ON accounts (person_id);
CREATE INDEX audit_of ON audit (person_id, audit_id);
CREATE INDEX audit_code ON audit (code, audit_id) WHERE code <> '';
CREATE INDEX attempts_of ON attempts (account, at);
CREATE UNIQUE INDEX one_open_ask ON approvals (person_id, tool)
        WHERE closed_at IS NULL AND kind = 'tool';
CREATE INDEX approvals_code ON approvals (code, ask_id);
CREATE INDEX approvals_of ON approvals (person_id, tool, ask_id);
CREATE INDEX approvals_open ON approvals (expires_at) WHERE closed_at IS NULL;
CREATE INDEX notices_unsent ON notices (made_at) WHERE sent_at IS NULL;
CREATE INDEX notices_of_ask ON notices (ask_id);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('audit',59);
INSERT INTO "sqlite_sequence" VALUES('invites',2);
INSERT INTO "sqlite_sequence" VALUES('shared_facts',1);
INSERT INTO "sqlite_sequence" VALUES('approvals',3);
COMMIT;
