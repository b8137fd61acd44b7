-- now 1800000060 invite RHDMG-AAU9F grant 3A9J open UJKT
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
INSERT INTO "approvals" VALUES(1,'3A9J','tool','telegram:222','terminal','{"command":"make backup"}','8e1b2171f0dd15f326c312a49962783b6e7d39632d7d2a29be8c8a3cf24d92df','arguments',0,'','{"platform": "telegram", "user_id": "222", "chat_id": "222", "chat_type": "dm", "thread_id": ""}',1800000034.0,1800000156.0,1800000036.0,1800000037.0,'approved','telegram:111','',2,1800007237.0);
INSERT INTO "approvals" VALUES(2,'NPJ9','tool','telegram:222','write_file','{"content":"x","path":"/etc/hosts"}','48315803a27b22417badbf69b57a83aba3c5243a27f9031b9aa3bfacceda1106','arguments',0,'','{"platform": "telegram", "user_id": "222", "chat_id": "222", "chat_type": "dm", "thread_id": ""}',1800000049.0,1800000171.0,1800000051.0,1800000052.0,'denied','telegram:111','not that file',0,NULL);
INSERT INTO "approvals" VALUES(3,'UJKT','tool','telegram:333','web_search','{"q":"tea"}','70663ec14c279dcfac1026a5088ca09073122171c869c5f0eed08fb38169a9a6','arguments',0,'','{"platform": "telegram", "user_id": "333", "chat_id": "333", "chat_type": "dm", "thread_id": ""}',1800000056.0,1800000178.0,1800000058.0,NULL,NULL,'','',0,NULL);
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
        detail    TEXT NOT NULL);
INSERT INTO "audit" VALUES(1,1800000002.0,'policy','claim code','cli:uid:0','','','');
INSERT INTO "audit" VALUES(2,1800000003.0,'policy','joined','telegram:111','','','as owner by claim, named Boss');
INSERT INTO "audit" VALUES(3,1800000005.0,'turn','turn','telegram:111','','','');
INSERT INTO "audit" VALUES(4,1800000006.0,'tokens','used','telegram:111','','','10 tokens');
INSERT INTO "audit" VALUES(5,1800000007.0,'policy','invite','telegram:111','','','member, 72 h');
INSERT INTO "audit" VALUES(6,1800000008.0,'policy','joined','telegram:222','','','as member by invite, named Minh');
INSERT INTO "audit" VALUES(7,1800000008.0,'policy','joined','telegram:222','','','Welcome, Minh. You have joined as a member. Just write what you need; /many whoami shows what you may use and /many help lists your commands.');
INSERT INTO "audit" VALUES(8,1800000009.0,'policy','joined','telegram:333','','','as guest by telegram:111, named Lan');
INSERT INTO "audit" VALUES(9,1800000010.0,'policy','budget','telegram:333','','','5,000 tokens a day for Lan, by telegram:111');
INSERT INTO "audit" VALUES(10,1800000011.0,'policy','budget','telegram:111','','','9,000 tokens a day for every guest, by telegram:111');
INSERT INTO "audit" VALUES(11,1800000012.0,'policy','tools','telegram:222','','','add notes_write for Minh, by telegram:111');
INSERT INTO "audit" VALUES(12,1800000013.0,'policy','tools','telegram:111','','','ask web_search for every guest, by telegram:111');
INSERT INTO "audit" VALUES(13,1800000015.0,'turn','turn','telegram:222','','','');
INSERT INTO "audit" VALUES(14,1800000016.0,'tokens','used','telegram:222','','','10 tokens');
INSERT INTO "audit" VALUES(15,1800000017.0,'tool','allow','telegram:222','manyhands_remember','','role_allow');
INSERT INTO "audit" VALUES(16,1800000018.0,'memory','remember','telegram:222','','','number 1');
INSERT INTO "audit" VALUES(17,1800000019.0,'tokens','used','telegram:222','','','10 tokens');
INSERT INTO "audit" VALUES(18,1800000020.0,'tool','allow','telegram:222','manyhands_share','','role_allow');
INSERT INTO "audit" VALUES(19,1800000021.0,'memory','share','telegram:222','','','number 1');
INSERT INTO "audit" VALUES(20,1800000022.0,'tokens','used','telegram:222','','','10 tokens');
INSERT INTO "audit" VALUES(21,1800000024.0,'turn','turn','telegram:333','','','');
INSERT INTO "audit" VALUES(22,1800000025.0,'tokens','used','telegram:333','','','10 tokens');
INSERT INTO "audit" VALUES(23,1800000026.0,'tool','allow','telegram:333','manyhands_remember','','role_allow');
INSERT INTO "audit" VALUES(24,1800000027.0,'memory','remember','telegram:333','','','number 1');
INSERT INTO "audit" VALUES(25,1800000028.0,'tokens','used','telegram:333','','','10 tokens');
INSERT INTO "audit" VALUES(26,1800000029.0,'refusal','not admitted','telegram:444','','','');
INSERT INTO "audit" VALUES(27,1800000030.0,'turn','notice','telegram:111','','','');
INSERT INTO "audit" VALUES(28,1800000032.0,'turn','turn','telegram:222','','','');
INSERT INTO "audit" VALUES(29,1800000033.0,'tokens','used','telegram:222','','','10 tokens');
INSERT INTO "audit" VALUES(30,1800000034.0,'approval','asked','telegram:222','terminal','3A9J','{"command":"make backup"}');
INSERT INTO "audit" VALUES(31,1800000034.0,'tool','ask','telegram:222','terminal','','role_ask');
INSERT INTO "audit" VALUES(32,1800000035.0,'tokens','used','telegram:222','','','10 tokens');
INSERT INTO "audit" VALUES(33,1800000036.0,'approval','shown','telegram:222','terminal','3A9J','');
INSERT INTO "audit" VALUES(34,1800000036.0,'turn','notice','telegram:111','','','');
INSERT INTO "audit" VALUES(35,1800000037.0,'approval','approved','telegram:222','terminal','3A9J','by telegram:111: 3 times, with exactly these arguments, within 2 h');
INSERT INTO "audit" VALUES(36,1800000038.0,'turn','notice','telegram:222','','','');
INSERT INTO "audit" VALUES(37,1800000039.0,'turn','resumed','telegram:222','','','');
INSERT INTO "audit" VALUES(38,1800000040.0,'tokens','used','telegram:222','','','10 tokens');
INSERT INTO "audit" VALUES(39,1800000042.0,'turn','turn','telegram:222','','','');
INSERT INTO "audit" VALUES(40,1800000043.0,'tokens','used','telegram:222','','','10 tokens');
INSERT INTO "audit" VALUES(41,1800000044.0,'approval','spent','telegram:222','terminal','3A9J','');
INSERT INTO "audit" VALUES(42,1800000044.0,'tool','allow','telegram:222','terminal','','spent a grant');
INSERT INTO "audit" VALUES(43,1800000045.0,'tokens','used','telegram:222','','','10 tokens');
INSERT INTO "audit" VALUES(44,1800000047.0,'turn','turn','telegram:222','','','');
INSERT INTO "audit" VALUES(45,1800000048.0,'tokens','used','telegram:222','','','10 tokens');
INSERT INTO "audit" VALUES(46,1800000049.0,'approval','asked','telegram:222','write_file','NPJ9','{"content":"x","path":"/etc/hosts"}');
INSERT INTO "audit" VALUES(47,1800000049.0,'tool','ask','telegram:222','write_file','','role_ask');
INSERT INTO "audit" VALUES(48,1800000050.0,'tokens','used','telegram:222','','','10 tokens');
INSERT INTO "audit" VALUES(49,1800000051.0,'approval','shown','telegram:222','write_file','NPJ9','');
INSERT INTO "audit" VALUES(50,1800000051.0,'turn','notice','telegram:111','','','');
INSERT INTO "audit" VALUES(51,1800000052.0,'approval','denied','telegram:222','write_file','NPJ9','by telegram:111: not that file');
INSERT INTO "audit" VALUES(52,1800000054.0,'turn','turn','telegram:333','','','');
INSERT INTO "audit" VALUES(53,1800000055.0,'tokens','used','telegram:333','','','10 tokens');
INSERT INTO "audit" VALUES(54,1800000056.0,'approval','asked','telegram:333','web_search','UJKT','{"q":"tea"}');
INSERT INTO "audit" VALUES(55,1800000056.0,'tool','ask','telegram:333','web_search','','role_list_ask');
INSERT INTO "audit" VALUES(56,1800000057.0,'tokens','used','telegram:333','','','10 tokens');
INSERT INTO "audit" VALUES(57,1800000058.0,'approval','shown','telegram:333','web_search','UJKT','');
INSERT INTO "audit" VALUES(58,1800000058.0,'turn','notice','telegram:111','','','');
INSERT INTO "audit" VALUES(59,1800000059.0,'policy','invite','telegram:111','','','guest, 72 h');
CREATE TABLE claims (
        code_hash  TEXT PRIMARY KEY,
        made_at    REAL NOT NULL,
        expires_at REAL NOT NULL,
        used_at    REAL) WITHOUT ROWID;
INSERT INTO "claims" VALUES('fbf55e75590944d2171b660ab9f99db78dec0ede53d6f20121b8d334aa161ecd',1800000002.0,1800000602.0,1800000003.0);
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
INSERT INTO "facts" VALUES('telegram:222',1,'I am allergic to peanuts and Erdnüsse','food','a735a1be1f747d4b1c479d3ec8e59f270ab6c7206906411a73d11ccd1ee988a5',1800000018.0);
INSERT INTO "facts" VALUES('telegram:333',1,'我喜欢喝绿茶','','7d9f52c67134c47ee4caae5417eeebca5a98b2cde4fc516c1f30594c54d5090c',1800000027.0);
CREATE TABLE invites (
        invite_id   INTEGER PRIMARY KEY AUTOINCREMENT,
        code_hash   TEXT NOT NULL UNIQUE,
        role        TEXT NOT NULL CHECK (role IN ('member', 'guest')),
        made_by     TEXT NOT NULL,
        made_at     REAL NOT NULL,
        expires_at  REAL NOT NULL,
        redeemed_at REAL,
        redeemed_by TEXT);
INSERT INTO "invites" VALUES(1,'d8c9ccda2b197860c391966b3d03736e44d7753dc5690ffb88ce8a43eb893757','member','telegram:111',1800000007.0,1800259207.0,1800000008.0,'telegram:222');
INSERT INTO "invites" VALUES(2,'1369261174804f58816d494f0178a9fa3503c77728d89d621e8efed7b8a9eee9','guest','telegram:111',1800000059.0,1800259259.0,NULL,NULL);
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
INSERT INTO "notices" VALUES('00618f4ffc51e7f64d76acceb1c652c5','ask',2,'','telegram:111','telegram','111','111','dm','',1800000049.0,1800000049.0,1800000051.0);
INSERT INTO "notices" VALUES('2571ada885c3b2fc5ea1c46cc4bc7238','outcome',2,'The owner said no to Minh''s request for write_file. Reason given: not that file','telegram:222','telegram','222','222','dm','',1800000052.0,1800000052.0,NULL);
INSERT INTO "notices" VALUES('757a36124d288801a39d71164e0ffc13','news',NULL,'Minh (telegram:222) joined as a member.','telegram:111','telegram','111','111','dm','',1800000008.0,1800000008.0,1800000030.0);
INSERT INTO "notices" VALUES('807a24a51316bcae5db8ebae0d622cbe','ask',1,'','telegram:111','telegram','111','111','dm','',1800000034.0,1800000034.0,1800000036.0);
INSERT INTO "notices" VALUES('bd15b79d3f82d9a5340524d31e428782','resume',1,'','telegram:222','telegram','222','222','dm','',1800000037.0,1800000037.0,1800000039.0);
INSERT INTO "notices" VALUES('c45e3e7ac7f667a9c5477c4c5a447e0b','outcome',1,'The owner approved Minh''s request for terminal. It is made again now.','telegram:222','telegram','222','222','dm','',1800000037.0,1800000037.0,1800000038.0);
INSERT INTO "notices" VALUES('f124e08a6dfec33abdbd2a0ef86b8412','ask',3,'','telegram:111','telegram','111','111','dm','',1800000056.0,1800000056.0,1800000058.0);
CREATE TABLE people (
        person_id TEXT PRIMARY KEY,
        name      TEXT NOT NULL,
        name_key  TEXT NOT NULL UNIQUE,
        role      TEXT NOT NULL CHECK (role IN ('owner', 'member', 'guest', 'blocked')),
        budget    INTEGER CHECK (budget IS NULL OR budget >= 0),
        joined_at REAL NOT NULL,
        joined_by TEXT NOT NULL);
INSERT INTO "people" VALUES('telegram:111','Boss','boss','owner',NULL,1800000003.0,'claim');
INSERT INTO "people" VALUES('telegram:222','Minh','minh','member',NULL,1800000008.0,'invite');
INSERT INTO "people" VALUES('telegram:333','Lan','lan','guest',5000,1800000009.0,'telegram:111');
CREATE TABLE sessions (
        session_id TEXT NOT NULL,
        speaker    TEXT NOT NULL,
        first_at   REAL NOT NULL,
        last_at    REAL NOT NULL,
        PRIMARY KEY (session_id, speaker)) WITHOUT ROWID;
INSERT INTO "sessions" VALUES('s-telegram-dm-111','telegram:111',1800000005.0,1800000058.0);
INSERT INTO "sessions" VALUES('s-telegram-dm-222','telegram:222',1800000015.0,1800000047.0);
INSERT INTO "sessions" VALUES('s-telegram-dm-333','telegram:333',1800000024.0,1800000054.0);
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
INSERT INTO "shared_facts" VALUES(1,'telegram:222','the wifi word is on the fridge','97cb60e1ba6849d8cbb1a36c291c516770f1c8967d3f95a4f1e2b8237b403f22',1800000021.0);
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
